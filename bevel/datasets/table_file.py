"""Opens .csv and .parquet files: their columns, and their rows in batches of limited size."""

import collections
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bevel.checks import in_one_line, nearest
from bevel.datasets.arrow_values import is_plain
from bevel.errors import FixDataError

CSV = (".csv", ".tsv", ".txt", ".data", ".csv.gz", ".tsv.gz")
PARQUET = (".parquet", ".pq")
ROWS_PER_BATCH = 1 << 16
BYTES_PER_BATCH = 1 << 24


@dataclasses.dataclass(frozen=True)
class TableFile:
    """A table in a file.

    Attributes:
      path: the file.
      types: the type of each column. Columns of a .csv file are text until they are encoded.
      repeated: names that several columns have.
      delimiter, header: how to read a .csv file; see `DataTable`.
    """

    path: Path
    types: dict[str, Any]
    repeated: tuple[str, ...]
    delimiter: str = ","
    header: tuple[str, ...] = ()

    def check_column(self, name: str, key: str) -> None:
        """Raises unless exactly one column has this name and holds plain values."""
        if name not in self.types:
            known = ", ".join(self.types)
            raise FixDataError(
                f"[data] {key}: {self.path} has no column {name!r}{nearest(name, self.types)} "
                f"Its columns are: {in_one_line(known)}."
            )
        if name in self.repeated:
            raise FixDataError(
                f"[data] {key}: {self.path} has several columns {name!r}: rename all but one."
            )
        if not is_plain(self.types[name]):
            raise FixDataError(
                f"[data] {key}: column {name!r} of {self.path} has type "
                f"{in_one_line(self.types[name], 60)}. Columns hold numbers, text, booleans or "
                "dates: leave it out, or store each of its parts in a column of its own."
            )

    def batches(self, names: list[str]) -> Iterator[Any]:
        """Reads these columns, as Arrow record batches. A file without records is an error."""
        rows = 0
        with _clear_errors(self.path):
            for batch in self._read(names):
                rows += batch.num_rows
                if batch.num_rows:
                    yield batch
        if not rows:
            raise FixDataError(f"{self.path} has a header and no records.")

    def _read(self, names: list[str]) -> Iterator[Any]:
        if is_parquet(self.path):
            import pyarrow.parquet as pq

            yield from pq.ParquetFile(self.path).iter_batches(ROWS_PER_BATCH, columns=names)
        else:
            yield from _open_csv(self.path, self.delimiter, self.header, names)


def open_table(path: Path, delimiter: str = ",", header: tuple[str, ...] = ()) -> TableFile:
    """Opens a file and reads the names of its columns."""
    if is_parquet(path):
        import pyarrow.parquet as pq

        with _clear_errors(path):
            schema = pq.ParquetFile(path).schema_arrow
    else:
        if path.name.endswith((".tsv", ".tsv.gz")) and delimiter == ",":
            delimiter = "\t"
        if len(delimiter) != 1:
            raise FixDataError(f"[data] delimiter is {delimiter!r}: write one character.")
        with _clear_errors(path):
            reader = _open_csv(path, delimiter, header)
            schema = reader.schema
            reader.close()
    names = list(schema.names)
    _check_delimiter(path, names, delimiter)
    counts = collections.Counter(names)
    repeated = tuple(name for name, count in counts.items() if count > 1)
    types = {field.name: field.type for field in schema}
    return TableFile(path, types, repeated, delimiter, header)


def is_parquet(path: Path) -> bool:
    return path.name.endswith(PARQUET)


def _open_csv(
    path: Path, delimiter: str, header: tuple[str, ...], names: list[str] | None = None
) -> Any:
    """A reader of record batches. With `names`, all columns are text, and only these are read."""
    import pyarrow as pa
    from pyarrow import csv

    return csv.open_csv(
        path,
        read_options=csv.ReadOptions(block_size=BYTES_PER_BATCH, column_names=list(header)),
        parse_options=csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=csv.ConvertOptions(
            include_columns=names or [],
            column_types={name: pa.string() for name in names or []},
            strings_can_be_null=False,
        ),
    )


def _check_delimiter(path: Path, names: list[str], delimiter: str) -> None:
    others = [mark for mark in ",;\t|" if mark != delimiter and mark in names[0]]
    if len(names) == 1 and others:
        raise FixDataError(
            f"{path} has one column, {in_one_line(names[0], 60)!r}. It looks separated by "
            f"{others[0]!r}: write delimiter = {others[0]!r} in [data]."
        )


class _clear_errors:
    """Turns errors of pyarrow into errors that name the file and say what to do."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        import pyarrow as pa

        if not isinstance(error, pa.ArrowException):
            return
        text = in_one_line(error).rstrip(".")
        if "Empty CSV file" in text:
            raise FixDataError(f"{self.path} is empty.") from None
        if "columns, got" in text:
            what = text.split("CSV parse error: ")[-1]
            raise FixDataError(
                f"{self.path} has a row with another number of columns: {what}. Correct the row, "
                "or put a value that contains the delimiter in quotes."
            ) from None
        if "UTF8" in text or "UTF-8" in text:
            raise FixDataError(f"{self.path} is not UTF-8 text: save it as UTF-8.") from None
        kind_of_file = "a Parquet file" if is_parquet(self.path) else "CSV"
        raise FixDataError(f"{self.path} cannot be read as {kind_of_file}: {text}.") from None
