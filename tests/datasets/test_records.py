"""Records of a user's function and of ArrayRecord files are prepared like those of other files."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

from bevel.datasets import DataSpec, DataTable
from bevel.datasets.records import (
    array_record_files,
    read_array_records,
    read_function,
    record_sets,
)
from bevel.errors import FixArgumentsError, FixDataError

PROGRAM = """
import numpy as np

class Records:
    person = np.array([1, 1, 2])
    def __init__(self, labels=(0, 1, 1)):
        self.labels = labels
    def __len__(self):
        return len(self.labels)
    def __getitem__(self, k):
        return {"x": np.full(2, k, np.float64), "y": self.labels[k], "more": 7}

def one(): return Records()
def pair(): return Records(), Records((1,))
def three(): return 1, 2, 3
def unknown_label(): return Records((0, 1, 5))
def arrays(): return {"x": np.zeros((3, 2)), "y": np.arange(3) % 2}
def masked(): return {"x": np.ma.masked_equal(np.zeros((3, 2)), 0), "y": np.arange(3)}
def without_x(): return {"z": np.zeros((3, 2)), "y": np.arange(3)}
def without_y(): return {"x": np.zeros((3, 2))}
def two_labels(): return {"x": np.zeros((3, 2)), "y": np.zeros((3, 2))}
def decode(record): return {"x": np.frombuffer(record, np.uint8)[:2], "y": record[2]}
"""


@pytest.fixture(name="file")
def fixture_file(tmp_path):
    path = tmp_path / "own_records.py"
    path.write_text(PROGRAM)
    return path


def read(file, name, **options):
    location = f"{file}:{name}"
    return read_function(DataTable(location, **({"classes": 2} | options)), location)


@pytest.mark.parametrize("name", ["one", "pair", "arrays"])
def test_anything_with_a_length_and_indexing(file, name):
    spec, train, test = read(file, name)
    assert spec == DataSpec("table", (2,), classes=2)
    batch = train.records.read(np.array([2, 1]))
    assert set(batch) == {"x", "y"} and batch["x"].dtype == np.float32
    assert (test is not None) == (name == "pair")


def test_users_are_an_attribute_of_the_training_set(file):
    _, train, _ = read(file, "pair", user="person")
    assert train.users.numbers.tolist() == [0, 0, 1]
    with pytest.raises(FixDataError, match="attribute of this name with 3 user ids"):
        read(file, "one", user="labels_of_others")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("three", {}, "returned 3 values"),
        ("masked", {}, "a masked array, whose mask bevel would ignore"),
        ("without_x", {}, r'Return records \{"x"'),
        ("without_y", {}, "must be one label"),
        ("two_labels", {}, "must be one label"),
        ("one", {"classes": None}, "write classes = 2"),
        ("none", {}, "has no function 'none'"),
    ],
)
def test_what_is_wrong_is_named(file, name, options, message):
    with pytest.raises((FixDataError, FixArgumentsError), match=message):
        read(file, name, **options)


def test_a_label_that_was_not_declared_stops_the_run(file):
    _, train, _ = read(file, "unknown_label")
    assert train.records.read(np.array([1]))["y"].tolist() == [1]
    with pytest.raises(FixDataError, match="such as 5"):
        train.records.read(np.array([2]))


def test_array_record_files(file, tmp_path):
    for part in range(2):
        writer = ArrayRecordWriter(str(tmp_path / f"{part}.array_record"), "group_size:1")
        for k in range(3):
            writer.write(bytes([part, 10 * k, k % 2]))
        writer.close()
    files = array_record_files(f"{tmp_path}/*.array_record")
    assert files == array_record_files(str(tmp_path)) and len(files) == 2
    table = DataTable(str(tmp_path), decode=f"{file}:decode", classes=2)
    spec, part = read_array_records(table, files)
    assert spec == DataSpec("table", (2,), classes=2)
    batch = part.records.read(np.arange(6))
    np.testing.assert_allclose(batch["x"][4] * 255, [1, 10], rtol=1e-6)
    assert batch["y"].tolist() == [0, 1, 0] * 2
    assert [len(source) for source in record_sets(table)] == [6]
    for changes, message in (
        ({"decode": None}, "write decode ="),
        ({"user": "a"}, "users of Array"),
    ):
        with pytest.raises((FixDataError, FixArgumentsError), match=message):
            read_array_records(dataclasses.replace(table, **changes), files)
    Path(files[0]).write_bytes(b"not records")
    with pytest.raises(FixDataError, match="cannot be read as ArrayRecord"):
        read_array_records(table, files[:1])
