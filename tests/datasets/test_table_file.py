"""Files of tables are opened, and what is wrong with a file is said in its words."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bevel.datasets.table_file import open_table
from bevel.errors import FixDataError


@pytest.fixture(name="csv")
def fixture_csv(tmp_path):
    def write(text, name="data.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def values(file, name):
    return [v for batch in file.batches([name]) for v in batch.column(name).to_pylist()]


def test_columns_of_csv_are_text_until_they_are_declared(csv):
    file = open_table(csv('a,b\n1,"x, y"\n007,z\n'))
    assert list(file.types) == ["a", "b"]
    assert values(file, "a") == ["1", "007"]
    assert values(file, "b") == ["x, y", "z"]


def test_byte_order_mark_line_breaks_and_other_delimiters(csv):
    assert list(open_table(csv("\ufeffa,b\n1,2\n")).types) == ["a", "b"]
    assert values(open_table(csv('a,b\n"1\n2",3\n')), "a") == ["1\n2"]
    assert list(open_table(csv("a\tb\n1\t2\n", "data.tsv")).types) == ["a", "b"]
    assert values(open_table(csv("a;b\n1;2\n"), ";"), "b") == ["2"]
    assert values(open_table(csv("1,2\n3,4\n"), header=("a", "b")), "a") == ["1", "3"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "data.csv is empty"),
        ("a,b\n", "data.csv has a header and no records"),
        ("a;b\n1;2\n", r"one column, 'a;b'. It looks separated by ';': write delimiter = ';'"),
        ("a,b\n1,2\n1,2,3\n", "another number of columns.*Expected 2 columns, got 3"),
        (b"a,b\n1,\xff\xfe\n", "is not UTF-8 text"),
    ],
)
def test_damaged_files_are_named(csv, text, message):
    with pytest.raises(FixDataError, match=message):
        list(open_table(csv(text)).batches(["a", "b"]))


def test_a_column_is_looked_up_by_its_name(csv):
    file = open_table(csv("age,job,job\n1,2,3\n"))
    file.check_column("age", "y")
    with pytest.raises(FixDataError, match=r"\[data\] y: .* no column 'agee'. Did you mean 'age'"):
        file.check_column("agee", "y")
    with pytest.raises(FixDataError, match="has several columns 'job': rename all but one"):
        file.check_column("job", "columns")


def test_parquet_is_read_in_batches_and_nested_columns_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "data.parquet"
    table = pa.table({"a": np.arange(10), "tags": [[1, 2]] * 10})
    pq.write_table(table, path, row_group_size=4)
    monkeypatch.setattr("bevel.datasets.table_file.ROWS_PER_BATCH", 3)
    file = open_table(path)
    assert values(file, "a") == list(range(10))
    assert max(batch.num_rows for batch in file.batches(["a"])) <= 3
    with pytest.raises(FixDataError, match=r"column 'tags' of .* has type list"):
        file.check_column("tags", "columns")
    path.write_bytes(b"PAR1 and nothing else")
    with pytest.raises(FixDataError, match="cannot be read as a Parquet file"):
        open_table(path)
