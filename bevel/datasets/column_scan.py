"""`ColumnScan`: what the values of one column look like, collected in one pass. Not private."""

import collections
import dataclasses
import datetime
import re
from typing import Any, Literal

import numpy as np

from bevel.datasets.arrow_values import NO_VALUE, days, is_plain, numbers, texts
from bevel.datasets.labels import as_texts
from bevel.errors import FixDataError

Kind = Literal["number", "date", "text", "nested"]
DISTINCT_LIMIT = 100_000
LONG_TEXT = 30  # characters
FEW_RECORDS = 20  # below that, different values in all records mean nothing
_PERSON = (
    "user|customer|patient|client|member|person|subject|account|household|device|author|student|"
    "employee|driver|owner"
)
_USER_NAME = re.compile(rf"(^|_)({_PERSON}|uid)s?(_(id|no|nr|num|number|key|code|name))?$")
_ID_NAME = re.compile(r"(^|_)(id|uuid|guid|index|key|row|number|nr|no)$")


@dataclasses.dataclass(frozen=True)
class ColumnOverview:
    """What was found in a column. It is computed from the records, so it is not private.

    Attributes:
      name, kind: `nested` columns cannot be used.
      records, missing: the number of records, and of those without a value.
      distinct: the number of different values, or None above 100,000.
      low, high: the range of numbers (floats) or dates (texts), or None.
      whole: whether all numbers are integers.
      counts: how often each value appears, sorted by value, if there are at most 1,000.
      most_repeats: how many records have the most frequent value.
      length: the mean number of characters of a text.
    """

    name: str
    kind: Kind
    records: int
    missing: int
    distinct: int | None
    low: float | str | None = None
    high: float | str | None = None
    whole: bool = False
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    most_repeats: int = 0
    length: float = 0.0

    @property
    def looks_like(self) -> Literal["user id", "identifier", "long text", ""]:
        """A guess from the name and the repeats of values."""
        if self.kind in ("nested", "date") or (self.kind == "number" and not self.whole):
            return ""
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[\W_]+", "_", self.name).lower().strip("_")
        known = self.records - self.missing
        is_id = bool(_ID_NAME.search(name) or _USER_NAME.search(name))
        if self.distinct is None or self.distinct == known:
            if self.kind == "text" and self.length > LONG_TEXT and not is_id:
                return "long text"
            is_counter = isinstance(self.low, float) and self.high == self.low + known - 1
            unique = known >= FEW_RECORDS and (self.kind == "text" or is_id or is_counter)
            return "identifier" if unique else ""
        if _USER_NAME.search(name) or (_ID_NAME.search(name) and self.distinct > known / 100):
            return "user id"
        if self.kind == "text" and self.length > LONG_TEXT and self.distinct > known / 2:
            return "long text"
        return ""


class ColumnScan:
    """Collects the overview of a column from Arrow arrays, batch by batch."""

    def __init__(self, name: str, arrow_type: Any) -> None:
        self.name = name
        self._plain = is_plain(arrow_type)
        self._kinds: list[Kind] = ["number", "date"]
        self._records = self._missing = self._characters = 0
        self._whole = True
        self._range = [np.inf, -np.inf]
        self._counts: collections.Counter[str] | None = collections.Counter()

    def add(self, values: Any) -> None:
        first_row = self._records + 1
        self._records += len(values)
        if not self._plain:
            return
        while self._kinds:
            try:
                read = numbers if self._kinds[0] == "number" else days
                found = read(values, self.name, first_row)
            except FixDataError:
                self._kinds.pop(0)
                self._range = [np.inf, -np.inf]
                continue
            known = found[np.isfinite(found)]
            if len(known):
                self._range = [min(self._range[0], known.min()), max(self._range[1], known.max())]
            self._whole &= bool((known == np.floor(known)).all())
            break
        self._count(values, first_row)

    def _count(self, values: Any, first_row: int) -> None:
        try:
            distinct, counts = np.unique(texts(values, self.name), return_counts=True)
        except FixDataError:  # numbers with a fraction
            found, counts = np.unique(numbers(values, self.name, first_row), return_counts=True)
            distinct = as_texts(found)
        for text, count in zip(distinct.tolist(), counts.tolist(), strict=True):
            if text in NO_VALUE:
                self._missing += count
                continue
            self._characters += len(text) * count
            if self._counts is not None:
                self._counts[text] += count
        if self._counts is not None and len(self._counts) > DISTINCT_LIMIT:
            self._counts = None

    def overview(self) -> ColumnOverview:
        if not self._plain:
            return ColumnOverview(self.name, "nested", self._records, 0, None)
        known = self._records - self._missing
        kind: Kind = self._kinds[0] if self._kinds and known else "text"
        low: float | str | None = None
        high: float | str | None = None
        if kind != "text" and self._range[0] <= self._range[1]:
            low, high = (float(bound) for bound in self._range)
        if kind == "date" and isinstance(low, float) and isinstance(high, float):
            epoch = datetime.date(1970, 1, 1)
            low, high = (
                (epoch + datetime.timedelta(days=int(np.floor(bound)))).isoformat()
                for bound in (low, high)
            )
        counts = self._counts or {}
        few = dict(sorted(counts.items())) if len(counts) <= 1000 else {}
        return ColumnOverview(
            self.name,
            kind,
            self._records,
            self._missing,
            None if self._counts is None else len(counts),
            low,
            high,
            kind == "number" and self._whole,
            few,
            max(counts.values(), default=0),
            self._characters / max(1, known),
        )
