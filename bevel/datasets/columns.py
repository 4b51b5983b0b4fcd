"""The declared columns of a table, and their encoding as features.

| declared as                | features of one record                                              |
| -------------------------- | ------------------------------------------------------------------- |
| `[0, 100]`                 | the number, clipped to the range and scaled to [-1, 1]              |
| `[0, 100, "missing"]`      | the same, 0 if it is missing, and another one: 1 if it is missing   |
| `[2010-01-01, 2024-12-31]` | a date or time, like a number                                       |
| `["a", "b"]`               | 1 for the category of the record, 0 for the others and for "other"  |

The encoding of a record depends on this record and on the declaration only. A mean or a list of
categories that is computed from all records would be a release that no epsilon covers.
"""

import dataclasses
import datetime
import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from bevel.checks import is_real
from bevel.datasets.arrow_values import days, numbers, texts
from bevel.errors import FixArgumentsError, FixDataError

MISSING = "missing"
DATES = ".."  # separates the two dates of a range


@dataclasses.dataclass(frozen=True)
class NumberColumn:
    """A column of numbers, dates or times with a public range."""

    name: str
    low: float
    high: float
    may_be_missing: bool = False
    dates: bool = False

    @property
    def width(self) -> int:
        return 2 if self.may_be_missing else 1

    def encode(self, values: Any, first_row: int) -> np.ndarray:
        """The features (rows, width) of an Arrow array that starts at row `first_row`."""
        found = (days if self.dates else numbers)(values, self.name, first_row)
        missing = np.isnan(found)
        if missing.any() and not self.may_be_missing:
            row = first_row + int(np.argmax(missing))
            raise FixDataError(
                f"row {row}: column {self.name!r} has no value. Add 'missing' to its range, as in "
                f'{self.name} = [{self.low:g}, {self.high:g}, "missing"], which adds a feature '
                "that says so."
            )
        scaled = np.where(missing, 0.0, scaled_to_one(found, self.low, self.high))
        return np.stack([scaled, missing][: self.width], axis=1).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class CategoryColumn:
    """A column of text with a public list of categories. Others, and missing ones, are "other"."""

    name: str
    categories: tuple[str, ...]

    @property
    def width(self) -> int:
        return len(self.categories) + 1

    def encode(self, values: Any, first_row: int) -> np.ndarray:
        """The features (rows, width) of an Arrow array. The last one means "other"."""
        found, other = texts(values, self.name), self.width - 1
        numbered = {category: number for number, category in enumerate(self.categories)}
        distinct, positions = np.unique(found, return_inverse=True)
        chosen = np.array([numbered.get(text, other) for text in distinct.tolist()])[positions]
        return np.eye(self.width, dtype=np.float32)[chosen]


Column: TypeAlias = NumberColumn | CategoryColumn


def scaled_to_one(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Values clipped to [low, high] and scaled to [-1, 1], in float64. NaN stays NaN."""
    return (np.clip(values, low, high) - low) / (high - low) * 2 - 1


def declared(value: Any) -> Any:
    """A value of [data.columns] as TOML has it, in the form that is kept in a `DataTable`.

    Dates become one text, because a run records its config as JSON.
    """
    if isinstance(value, list) and [type(x) for x in value[:2]] == [datetime.date] * 2:
        first, last = (date.isoformat() for date in value[:2])
        return (f"{first}{DATES}{last}", *value[2:])
    return tuple(value) if isinstance(value, list) else value


def columns_of(table: Mapping[str, Any]) -> list[Column]:
    """The columns that [data.columns] declares, in its order."""
    return [_column(name, value) for name, value in table.items()]


def _column(name: str, value: Any) -> Column:
    where = f"[data.columns] {name} is {list(value) if isinstance(value, tuple) else value!r}"
    parts = value if isinstance(value, tuple) else ()
    may_be_missing = len(parts) > 1 and parts[-1] == MISSING and not _is_category(parts[0])
    bounds = parts[:-1] if may_be_missing else parts
    if bounds and isinstance(bounds[0], str) and DATES in bounds[0] and len(bounds) == 1:
        first, last = (datetime.date.fromisoformat(text) for text in bounds[0].split(DATES))
        if first >= last:
            raise FixArgumentsError(f"{where}: write the earlier date first.")
        epoch = datetime.date(1970, 1, 1)
        # The last day counts as a whole.
        days_in = ((first - epoch).days, (last - epoch).days + 1)
        return NumberColumn(name, *days_in, may_be_missing, dates=True)
    if len(bounds) == 2 and all(is_real(bound) for bound in bounds):
        low, high = (float(bound) for bound in bounds)
        if not (low < high and math.isfinite(low) and math.isfinite(high)):
            raise FixArgumentsError(f"{where}: write [low, high] with low < high.")
        return NumberColumn(name, low, high, may_be_missing)
    if bounds and all(_is_category(bound) for bound in bounds):
        twice = [text for number, text in enumerate(bounds) if text in bounds[:number]]
        if twice:
            raise FixArgumentsError(f"{where}: {twice[0]!r} is in the list twice.")
        return CategoryColumn(name, tuple(text.strip() for text in bounds))
    raise FixArgumentsError(
        f'{where}: write [low, high] or [low, high, "missing"] for numbers, two dates, or a list '
        'of categories as text, such as ["red", "green"].'
    )


def _is_category(value: Any) -> bool:
    return isinstance(value, str) and not _is_date_range(value)


def _is_date_range(text: str) -> bool:
    first, separator, last = text.partition(DATES)
    try:
        return bool(separator and datetime.date.fromisoformat(first)) and bool(
            datetime.date.fromisoformat(last)
        )
    except ValueError:
        return False
