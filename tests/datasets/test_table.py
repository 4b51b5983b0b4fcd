"""Tables become features and labels as the config declares, in memory or in a file."""

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bevel.datasets import DataSpec, DataTable
from bevel.datasets.table import byte_tokens, read_table
from bevel.errors import FixArgumentsError, FixDataError

TEXT = "age,job,pay,who\n20, clerk,low,ann\n60,nurse,high,bob\n,pilot,low,ann\n300,clerk,high,cy\n"
COLUMNS = {"age": (0.0, 100.0, "missing"), "job": ("clerk", "nurse")}
FEATURES = [[-0.6, 0, 1, 0, 0], [0.2, 0, 0, 1, 0], [0, 1, 0, 0, 1], [1, 0, 1, 0, 0]]


@pytest.fixture(name="table")
def fixture_table(tmp_path):
    path = tmp_path / "pay.csv"
    path.write_text(TEXT)
    return DataTable(str(path), y="pay", classes=("low", "high"), columns=COLUMNS)


def read(table, **options):
    return read_table(table, Path(table.source), **options)


def rows(part):
    return part.records.read(np.arange(len(part.records)))


@pytest.mark.parametrize("memory_limit", [0, 1 << 20])
def test_features_and_labels(table, memory_limit):
    spec, part = read(table, memory_limit=memory_limit)
    assert spec == DataSpec("table", (5,), classes=2)
    np.testing.assert_allclose(rows(part)["x"], FEATURES, atol=1e-6)
    assert rows(part)["y"].tolist() == [0, 1, 0, 1]
    columns = part.records._records.columns["x"]
    assert isinstance(columns, np.memmap) == (memory_limit == 0)


def test_parquet_gives_the_same_features(table, tmp_path):
    path = tmp_path / "pay.parquet"
    columns = {
        "age": pa.array([20, 60, None, 300], pa.int16()),
        "job": pa.array(["clerk", "nurse", "pilot", "clerk"]).dictionary_encode(),
        "pay": ["low", "high", "low", "high"],
        "extra": [[1]] * 4,
    }
    pq.write_table(pa.table(columns), path)
    _, part = read(dataclasses.replace(table, source=str(path)))
    np.testing.assert_allclose(rows(part)["x"], FEATURES, atol=1e-6)


def test_users_are_numbered(table):
    _, part = read(dataclasses.replace(table, user="who"))
    assert part.users.numbers.tolist() == [0, 1, 0, 2]
    assert part.users.ids == ["ann", "bob", "cy"]


def test_ids_and_labels_that_are_whole_numbers_with_gaps(tmp_path):
    path = tmp_path / "visits.parquet"
    columns = {"age": [1, 2, 3], "who": [7.0, 7.0, 9.0], "stars": [1.0, 2.0, None]}
    pq.write_table(pa.table(columns), path)
    table = DataTable(str(path), y="stars", classes=("1", "2"), user="who", columns={"age": (0, 9)})
    _, part = read(dataclasses.replace(table, drop_missing=True))
    assert part.users.ids == ["7", "9"] and rows(part)["y"].tolist() == [0, 1]


def test_records_without_a_label_are_dropped_on_request(table, tmp_path):
    (tmp_path / "pay.csv").write_text(TEXT.replace("60,nurse,high,bob", "60,nurse,,bob"))
    with pytest.raises(FixDataError, match="1 of 4 records have no label, the first in row 2"):
        read(table)
    _, part = read(dataclasses.replace(table, drop_missing=True, user="who"))
    assert rows(part)["y"].tolist() == [0, 0, 1]
    assert [part.users.ids[k] for k in part.users.numbers] == ["ann", "ann", "cy"]


def test_a_number_to_predict(table):
    number = dataclasses.replace(
        table, y="age", classes=None, target="number", y_range=(0.0, 100.0), drop_missing=True
    )
    spec, part = read(dataclasses.replace(number, columns={"job": COLUMNS["job"]}))
    assert (spec.target, spec.target_range) == ("number", (0.0, 100.0))
    np.testing.assert_allclose(rows(part)["y"], [-0.6, 0.2, 1.0], atol=1e-6)
    assert rows(part)["y"].dtype == np.float32


def test_text_becomes_bytes(tmp_path):
    path = tmp_path / "reviews.csv"
    path.write_text("review,stars\nnaïve,1\nabcdefgh,0\n")
    table = DataTable(
        str(path), kind="tokens", x="review", encoding="bytes", length=7, y="stars", classes=2
    )
    spec, part = read(table)
    assert spec == DataSpec("tokens", (7,), "int32", 2, 257, padding=256)
    assert rows(part)["x"].tolist() == [[*"naïve".encode(), 256], [*b"abcdefg"]]
    spec, part = read(dataclasses.replace(table, y=None, classes=None, target="next token"))
    assert (spec.shape, spec.target) == ((6,), "next token")
    assert rows(part)["y"][0].tolist() == [*"naïve".encode()[1:], -1]


def test_bytes_are_cut_and_padded():
    assert byte_tokens(np.array(["ab", ""]), 3).tolist() == [[97, 98, 256], [256] * 3]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"columns": {}}, r"declares no columns of .*Run `bevel data .*pay.csv`"),
        ({"columns": {"aeg": (0.0, 1.0)}}, "no column 'aeg'. Did you mean 'age'"),
        ({"columns": COLUMNS | {"pay": ("low", "high")}}, "'pay', which is also in .data.columns"),
        ({"columns": COLUMNS | {"who": ("ann",)}, "user": "who"}, "user is 'who', which is also"),
        ({"columns": {"job": (0.0, 1.0)}}, "row 1: column 'job' holds 'clerk'"),
        ({"columns": {"age": (0.0, 1.0)}}, "row 3: column 'age' has no value"),
        ({"y": None}, "has no y: name the column"),
        ({"y": "payy"}, "no column 'payy'. Did you mean 'pay'"),
        ({"user": "pay"}, "y and user are both 'pay'"),
        ({"user": "age", "columns": {"job": ("clerk",)}}, "row 3 has no user id"),
        ({"classes": None}, r'write classes = \["high", "low"\]'),
        ({"classes": ("low", "medium")}, "2 labels are not in the list.*'high'"),
        ({"classes": 2}, "'pay' holds 'low', which is not a number.*or as classes"),
        ({"x": "job"}, "Declare the columns of a table in .data.columns. instead"),
        ({"kind": "image"}, "is a table"),
        ({"kind": "tokens"}, "write x = 'COLUMN'"),
        ({"kind": "tokens", "x": "job", "encoding": "bytes"}, "leave .data.columns. out"),
    ],
)
def test_what_is_wrong_is_named(table, changes, message):
    with pytest.raises((FixDataError, FixArgumentsError), match=message):
        read(dataclasses.replace(table, **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "write length = N"),
        ({"length": 1}, "length=1: pass an integer of at least 2"),
        ({"length": 8, "vocabulary": 50}, "has vocabulary 257 and padding 256"),
    ],
)
def test_texts_need_a_length(table, changes, message):
    tokens = dataclasses.replace(table, kind="tokens", x="job", encoding="bytes", columns={})
    with pytest.raises((FixDataError, FixArgumentsError), match=message):
        read(dataclasses.replace(tokens, **changes))
