"""Values of Arrow columns in NumPy: numbers, days and texts."""

from typing import Any

import numpy as np

from bevel.errors import FixDataError

# Texts that mean "no value" in a column of numbers, dates or labels.
NO_VALUE = ("", "?", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "-")
MICROSECONDS_PER_DAY = 86_400e6


def numbers(values: Any, name: str, first_row: int) -> np.ndarray:
    """The numbers of a column as float64, with NaN where there is none. Booleans are 0 and 1."""
    import pyarrow as pa

    values = _decoded(values, name)
    kind = values.type
    if pa.types.is_temporal(kind):
        raise FixDataError(
            f"column {name!r} holds dates or times ({kind}), but a range of numbers is declared: "
            f"write {name} = [2010-01-01, 2024-12-31] with your first and last date."
        )
    if _is_text(kind):
        values = _without_missing(values)
        if pa.types.is_large_string(kind):
            values = values.cast(pa.string())
        values = _converted(_booleans_as_digits(values), pa.float64(), name, first_row, "a number")
    elif pa.types.is_boolean(kind):
        values = values.cast(pa.uint8())
    return np.asarray(values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))


def days(values: Any, name: str, first_row: int) -> np.ndarray:
    """The dates or times of a column as days since 1970, with NaN where there is none."""
    import pyarrow as pa

    values = _decoded(values, name)
    unit = pa.timestamp("us", tz=getattr(values.type, "tz", None))
    if _is_text(values.type):
        values = _converted(_without_missing(values), unit, name, first_row, "a date")
    elif not (pa.types.is_date(values.type) or pa.types.is_timestamp(values.type)):
        raise FixDataError(
            f"column {name!r} holds values of type {values.type}, but a range of dates is "
            f"declared: write {name} = [low, high] with numbers."
        )
    else:
        values = values.cast(unit, safe=False)
    missing = values.is_null().to_numpy(zero_copy_only=False)
    counted = values.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return np.where(missing, np.nan, counted / MICROSECONDS_PER_DAY)


def texts(values: Any, name: str) -> np.ndarray:
    """The texts of a column, without spaces around them. A missing one is the empty text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = _decoded(values, name)
    if pa.types.is_floating(values.type) or pa.types.is_decimal(values.type):
        raise FixDataError(
            f"column {name!r} holds numbers with a fraction ({values.type}), but a list of "
            "categories is declared: write [low, high]."
        )
    text = pc.utf8_trim_whitespace(values.cast(pa.string()))
    found: np.ndarray = text.fill_null("").to_numpy(zero_copy_only=False)
    return found.astype(str) if len(found) else np.zeros(0, "U1")


def is_plain(kind: Any) -> bool:
    """Whether a type of Arrow is a number, a text, a boolean, a date or a time."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    is_time = pa.types.is_date(kind) or pa.types.is_timestamp(kind)
    return is_number or is_time or _is_text(kind) or bool(pa.types.is_boolean(kind))


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _decoded(values: Any, name: str) -> Any:
    """A column as one plain array. Raises for lists and other nested types."""
    import pyarrow as pa

    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_null(values.type):
        values = values.cast(pa.string())
    if not is_plain(values.type):
        raise FixDataError(
            f"column {name!r} has type {values.type}. Columns hold numbers, text, booleans or "
            "dates: leave it out, or store each of its parts in a column of its own."
        )
    return values


def _without_missing(values: Any) -> Any:
    """Trimmed texts, with null where a text means "no value"."""
    import pyarrow as pa
    import pyarrow.compute as pc

    text = pc.utf8_trim_whitespace(values)
    none = pc.is_in(text, value_set=pa.array(NO_VALUE, text.type))
    return pc.if_else(none, pa.scalar(None, text.type), text)


def _booleans_as_digits(text: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    lower = pc.utf8_lower(text)
    text = pc.if_else(pc.equal(lower, "true"), pa.scalar("1"), text)
    return pc.if_else(pc.equal(lower, "false"), pa.scalar("0"), text)


def _converted(text: Any, kind: Any, name: str, first_row: int, expected: str) -> Any:
    """Texts as another type. The error names the first row that is not of this type."""
    import pyarrow as pa

    try:
        return text.cast(kind)
    except pa.ArrowInvalid:
        for row, value in enumerate(text):
            try:
                value.cast(kind)
            except pa.ArrowInvalid:
                raise FixDataError(
                    f"row {first_row + row}: column {name!r} holds {value.as_py()!r}, which is not "
                    f"{expected}. Correct it, or list the texts of this column: as its categories "
                    "in [data.columns], or as classes if it is the label."
                ) from None
        raise
