"""Reads tables: declared columns become features, and one column of text becomes tokens."""

from pathlib import Path
from typing import Any

import numpy as np

from bevel.checks import whole_number
from bevel.datasets import arrow_values
from bevel.datasets.columns import columns_of
from bevel.datasets.data_set import DataSpec
from bevel.datasets.growing_array import MEMORY_LIMIT, GrowingArray
from bevel.datasets.labels import Labels, as_texts, check_missing, declared_labels, labels_of
from bevel.datasets.options import DataTable
from bevel.datasets.prepared import PreparedSource
from bevel.datasets.split import Part, Users
from bevel.datasets.table_file import TableFile, open_table
from bevel.errors import FixArgumentsError, FixDataError
from bevel.training.data import ArraySource

BYTE_TOKENS = 257  # one for each byte, and padding
BYTE_PADDING = 256


def read_table(
    table: DataTable, path: Path, memory_limit: int = MEMORY_LIMIT
) -> tuple[DataSpec, Part]:
    """Reads a file once, in batches. Above `memory_limit` bytes, features go to a temporary file.

    The features of a record depend on this record and on the config only.
    """
    file = open_table(path, table.delimiter, table.header)
    columns, names = columns_of(table.columns), _used_names(table, file)
    is_text = table.kind == "tokens"
    width = _text_length(table) if is_text else sum(column.width for column in columns)
    features = GrowingArray((width,), np.uint16 if is_text else np.float32, memory_limit)
    labels, targets, users = labels_of(table), GrowingArray((), np.float64), _UserColumn()
    where, no_label, row = f"{path}, column {table.y!r}", GrowingArray((), bool), 1
    for batch in file.batches(names):
        missing = np.zeros(batch.num_rows, bool)
        if table.y is not None:
            y = _label_values(batch.column(table.y), table, labels, row)
            labels = declared_labels(labels, y, where)
            encoded, missing = labels.encode(y, where)
            targets.append(encoded[~missing])
        no_label.append(missing)
        if is_text:
            assert table.x is not None
            rows = byte_tokens(arrow_values.texts(batch.column(table.x), table.x), width)
        else:
            rows = np.concatenate(
                [column.encode(batch.column(column.name), row) for column in columns], axis=1
            )
        features.append(rows[~missing])
        if table.user is not None:
            users.append(_texts(batch.column(table.user), table.user, row), row, ~missing)
        row += batch.num_rows
    check_missing(no_label.array(), table.drop_missing, where)
    spec = _spec(table, width, labels)
    x, y_column = features.array(), targets.array().astype(spec.record["y"].dtype)
    if not len(x):
        raise FixDataError(f"{path}: no record has a label in column {table.y!r}.")
    y = np.zeros(len(x), np.int32) if table.y is None else y_column
    records = PreparedSource(ArraySource({"x": x, "y": y}), spec)
    return spec, Part(records, users.users() if table.user is not None else None)


def byte_tokens(texts: np.ndarray, length: int) -> np.ndarray:
    """The UTF-8 bytes of texts, (rows, length): cut, or filled with padding (256)."""
    tokens = np.full((len(texts), length), BYTE_PADDING, np.uint16)
    for row, text in zip(tokens, texts.tolist(), strict=True):
        encoded = np.frombuffer(text.encode()[:length], np.uint8)
        row[: len(encoded)] = encoded
    return tokens


def _used_names(table: DataTable, file: TableFile) -> list[str]:
    """The columns that the config uses. Raises if one is not there, or has two roles."""
    if table.kind == "image":
        raise FixArgumentsError(f"[data] kind is 'image', but {file.path} is a table.")
    if table.kind == "tokens":
        if table.encoding != "bytes" or table.x is None:
            raise FixDataError(
                f"[data] kind is 'tokens' and {file.path} is a table: write x = 'COLUMN' for its "
                "text, encoding = 'bytes', and length = N."
            )
        features = [table.x]
        if table.columns:
            raise FixArgumentsError("[data] kind is 'tokens': leave [data.columns] out.")
    else:
        features = list(table.columns)
        if table.x is not None:
            raise FixArgumentsError(
                "[data] x names a column of text for kind = 'tokens'. Declare the columns of a "
                "table in [data.columns] instead."
            )
        if not features:
            raise FixDataError(
                f"[data] declares no columns of {file.path}. Run `bevel data {file.path}`: it "
                "shows the columns and proposes [data.columns]."
            )
    if table.y is None and table.target != "next token":
        raise FixDataError(
            f"[data] has no y: name the column of {file.path} that the model predicts, as in "
            f"y = '{list(file.types)[-1]}'."
        )
    roles = {"y": table.y, "user": table.user}
    for key, name in roles.items():
        if name is not None:
            file.check_column(name, key)
            if name in features:
                where = "x" if table.kind == "tokens" else "[data.columns]"
                raise FixDataError(
                    f"[data] {key} is {name!r}, which is also in {where}: the model would get it "
                    "as input. Remove it there."
                )
    if table.y is not None and table.y == table.user:
        raise FixDataError(f"[data] y and user are both {table.y!r}.")
    for name in features:
        file.check_column(name, "x" if table.kind == "tokens" else "columns")
    return [*features, *(name for name in roles.values() if name is not None)]


def _text_length(table: DataTable) -> int:
    if table.length is None:
        raise FixDataError("[data] encoding is 'bytes': write length = N, such as length = 256.")
    if table.vocabulary not in (None, BYTE_TOKENS) or table.padding not in (None, BYTE_PADDING):
        raise FixArgumentsError(
            f"[data] encoding 'bytes' has vocabulary {BYTE_TOKENS} and padding {BYTE_PADDING}: "
            "leave both out."
        )
    return whole_number("[data] length", table.length, 2)


def _label_values(column: Any, table: DataTable, labels: Labels | None, row: int) -> np.ndarray:
    """The labels of a batch: texts where classes are named, else numbers."""
    name = str(table.y)
    if labels is not None and not labels.names:
        return arrow_values.numbers(column, name, row)
    return _texts(column, name, row)


def _texts(column: Any, name: str, row: int) -> np.ndarray:
    """Texts or whole numbers as texts: 1.0 is '1', as in a column of integers with gaps."""
    try:
        return arrow_values.texts(column, name)
    except FixDataError:
        return as_texts(arrow_values.numbers(column, name, row))


def _spec(table: DataTable, width: int, labels: Labels | None) -> DataSpec:
    if table.kind != "tokens":
        spec = DataSpec("table", (width,))
    elif table.target == "next token":
        return DataSpec(
            "tokens",
            (width - 1,),
            "int32",
            vocabulary=BYTE_TOKENS,
            target="next token",
            padding=BYTE_PADDING,
        )
    else:
        spec = DataSpec("tokens", (width,), "int32", vocabulary=BYTE_TOKENS, padding=BYTE_PADDING)
    assert labels is not None
    return labels.described(spec)


class _UserColumn:
    """Numbers users in the order in which they appear, so that ids need memory only once."""

    def __init__(self) -> None:
        self._numbers = GrowingArray((), np.int64)
        self._known: dict[str, int] = {}

    def append(self, ids: np.ndarray, first_row: int, keep: np.ndarray) -> None:
        if (ids == "").any():
            raise FixDataError(
                f"row {first_row + int(np.argmax(ids == ''))} has no user id. Every record must "
                "belong to a user, because all records of a user are protected together."
            )
        distinct, positions = np.unique(ids, return_inverse=True)
        numbers = [self._known.setdefault(user, len(self._known)) for user in distinct.tolist()]
        self._numbers.append(np.array(numbers, np.int64)[positions][keep])

    def users(self) -> Users:
        return Users(self._numbers.array(), list(self._known))
