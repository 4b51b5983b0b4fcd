"""Proposes the [data] table of a config for a table file. All values in it become public."""

import dataclasses
import math
from typing import Any

from bevel.datasets.column_scan import ColumnOverview
from bevel.datasets.toml_block import Bare, toml_block
from bevel.errors import FixDataError

LABEL_NAMES = ("label", "class", "target", "y", "outcome", "income")
MOST_CLASSES = 100
MOST_NUMBERED_CLASSES = 20
MOST_CATEGORIES = 50
FEWEST_RECORDS = 10  # of a category that is proposed


@dataclasses.dataclass(frozen=True)
class DataProposal:
    """Keys of [data] and [data.columns], and comments on them."""

    data: dict[str, Any]
    columns: dict[str, Any] = dataclasses.field(default_factory=dict)
    comments: dict[str, str] = dataclasses.field(default_factory=dict)

    def toml(self) -> str:
        own = {key: text for key, text in self.comments.items() if key in self.data}
        blocks = [toml_block("data", self.data, own)]
        if self.columns:
            rest = {key: text for key, text in self.comments.items() if key not in self.data}
            blocks.append(toml_block("data.columns", self.columns, rest))
        return "\n".join(blocks)


def table_proposal(
    data: dict[str, Any],
    columns: list[ColumnOverview],
    label: str | None = None,
    user: str | None = None,
) -> DataProposal:
    """A proposal for these columns. `data` has the keys that say how to read the file."""
    by_name = {column.name: column for column in columns}
    for name in (label, user):
        if name is not None and name not in by_name:
            raise FixDataError(f"there is no column {name!r}: {', '.join(by_name)}.")
    target = by_name[label] if label is not None else _label(columns)
    data, comments = data | {"y": target.name} | _target(target), {}
    if target.missing:
        data["drop_missing"] = True
        comments["drop_missing"] = f"{target.missing:,} records have no label."
    candidates = [c for c in columns if c.looks_like == "user id" and c is not target]
    protected = by_name[user] if user is not None else (candidates or [None])[0]  # type: ignore[list-item]
    if protected is not None:
        data["user"] = protected.name
        comments["user"] = (
            "Protects all records of a user together. Without it, single records are protected."
        )
    used = [c for c in columns if c is not target and c is not protected]
    long_text = [c for c in used if c.looks_like == "long text"]
    declared = {c.name: value for c in used if (value := _declared(c)) is not None}
    if long_text and not declared:
        text = long_text[0]
        data |= {"kind": "tokens", "x": text.name, "encoding": "bytes"}
        data["length"] = 2 ** max(4, min(9, math.ceil(math.log2(text.length + 1))))
        return DataProposal(data, {}, comments)
    comments |= {c.name: _why_not(c) for c in used if c.name not in declared}
    return DataProposal(data, declared, comments)


def rounded_range(low: float, high: float) -> tuple[float, float]:
    """A range with bounds of one digit of its span, which contains [low, high]."""
    if low == high:
        return (low - 1, high + 1)
    step = 10.0 ** math.floor(math.log10(high - low))
    digits = max(0, -math.floor(math.log10(step)))
    first, last = math.floor(low / step) * step, math.ceil(high / step) * step
    return (round(first, digits), round(last, digits))


def _class_keys(column: ColumnOverview) -> dict[str, Any]:
    """The classes of a column with few values: their number, or their names."""
    names = list(column.counts)
    if column.whole and column.low == 0 and isinstance(column.high, float):
        return {"classes": int(column.high) + 1}
    if column.whole:
        names.sort(key=float)
    return {"classes": names}


def _label(columns: list[ColumnOverview]) -> ColumnOverview:
    """The column that the model most likely predicts: one with such a name, or the last one."""
    for name in LABEL_NAMES:
        found = [column for column in columns if column.name.strip().lower() == name]
        if found:
            return found[0]
    usable = [c for c in columns if c.kind in ("number", "text") and not c.looks_like]
    if not usable:
        raise FixDataError("no column can be predicted: name one with --label COLUMN.")
    return usable[-1]


def _target(column: ColumnOverview) -> dict[str, Any]:
    few = column.distinct is not None and column.distinct >= 2
    most = MOST_NUMBERED_CLASSES if column.kind == "number" else MOST_CLASSES
    if few and column.distinct <= most and (column.kind == "text" or column.whole):  # type: ignore[operator]
        return _class_keys(column)
    if isinstance(column.low, float) and isinstance(column.high, float):
        return {"target": "number", "y_range": list(rounded_range(column.low, column.high))}
    raise FixDataError(
        f"column {column.name!r} ({column.kind}, {column.distinct} different values) cannot be "
        "predicted: name another one with --label COLUMN."
    )


def _declared(column: ColumnOverview) -> Any:
    """The declaration of a column, or None if it is not proposed as an input."""
    if column.looks_like or column.kind == "nested":
        return None
    missing = ["missing"] if column.missing else []
    if column.kind == "number" and isinstance(column.low, float):
        assert isinstance(column.high, float)
        return [*rounded_range(column.low, column.high), *missing]
    if column.kind == "date":
        first, last = str(column.low)[:4], str(column.high)[:4]
        return [Bare(f"{first}-01-01"), Bare(f"{last}-12-31"), *missing]
    least = min(FEWEST_RECORDS, column.records // 100)
    names = [name for name, count in column.counts.items() if count >= least]
    return names if names and len(names) <= MOST_CATEGORIES else None


def _why_not(column: ColumnOverview) -> str:
    """The comment on a column that is left out."""
    many = "many" if column.distinct is None else f"{column.distinct:,}"
    match column.looks_like:
        case "identifier":
            return f"{column.name}: left out, a value of its own in every record identifies it."
        case "user id":
            return f"{column.name}: left out, it looks like the id of a user."
        case "long text":
            return f"{column.name}: left out, long texts. Use kind = 'tokens' to train on them."
    if column.kind == "nested":
        return f"{column.name}: left out, lists and other nested values cannot be used."
    if not column.counts and column.missing == column.records:
        return f"{column.name}: left out, it has no values."
    return f"{column.name}: left out, {many} different texts. List those that may be public."
