"""Events as JSON and back: every kind that `bevel.accounting` makes or composes, and no other.

Writing an event loads nothing: an event is known by the name of its class. Reading one loads
dp-accounting.
"""

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from bevel.errors import FixArgumentsError

if TYPE_CHECKING:
    from dp_accounting import DpEvent

EventJson: TypeAlias = dict[str, Any]

DP_ACCOUNTING, BEVEL = "dp_accounting", "bevel.accounting.mixture_events"

# Kind -> the module that has it, and what its fields hold.
KINDS: dict[str, tuple[str, dict[str, str]]] = {
    "NoOpDpEvent": (DP_ACCOUNTING, {}),
    "NonPrivateDpEvent": (DP_ACCOUNTING, {}),
    "GaussianDpEvent": (DP_ACCOUNTING, {"noise_multiplier": "size"}),
    "ZCDpEvent": (DP_ACCOUNTING, {"rho": "size", "xi": "size"}),
    "PoissonSampledDpEvent": (
        DP_ACCOUNTING,
        {"sampling_probability": "probability", "event": "event"},
    ),
    "SampledWithReplacementDpEvent": (
        DP_ACCOUNTING,
        {"source_dataset_size": "positive", "sample_size": "positive", "event": "event"},
    ),
    "SampledWithoutReplacementDpEvent": (
        DP_ACCOUNTING,
        {"source_dataset_size": "positive", "sample_size": "positive", "event": "event"},
    ),
    "TruncatedSubsampledGaussianDpEvent": (
        DP_ACCOUNTING,
        {
            "dataset_size": "positive",
            "sampling_probability": "probability",
            "truncated_batch_size": "positive",
            "noise_multiplier": "size",
        },
    ),
    "SelfComposedDpEvent": (DP_ACCOUNTING, {"event": "event", "count": "count"}),
    "ComposedDpEvent": (DP_ACCOUNTING, {"events": "events"}),
    "BallsInBinsDpEvent": (
        BEVEL,
        {
            "noise_multiplier": "size",
            "iterations": "positive",
            "cycle_length": "positive",
            "strategy": "matrix",
        },
    ),
    "RandomAllocationDpEvent": (
        BEVEL,
        {"noise_multiplier": "size", "iterations": "positive", "total_participations": "positive"},
    ),
}

# Of two fields, the one that may not be larger, and the other.
AT_MOST = {
    "SampledWithoutReplacementDpEvent": ("sample_size", "source_dataset_size"),
    "RandomAllocationDpEvent": ("total_participations", "iterations"),
}

# Events inside events, so deep at most: a line must be readable wherever it could be written.
DEEPEST = 32


def event_to_json(event: "DpEvent | Mapping[str, Any]") -> EventJson:
    """An event as JSON: `{"kind": ..., and its fields}`. JSON of an event is checked and returned.

    Numbers are kept to the last bit, and must be what their field means: noise multipliers of at
    least 0, probabilities up to 1. Raises for a kind that is not in `KINDS`: what could not be read
    back could not be accounted.
    """
    return _written(event, 0)


def _written(event: "DpEvent | Mapping[str, Any]", depth: int) -> EventJson:
    if depth > DEEPEST:
        raise FixArgumentsError(
            f"an event with events inside events, more than {DEEPEST} deep: compose them in one "
            "SelfComposedDpEvent or ComposedDpEvent."
        )
    if isinstance(event, Mapping):
        kind, fields = event.get("kind"), {k: v for k, v in event.items() if k != "kind"}
    else:
        kind = type(event).__name__
        module = KINDS.get(kind, ("", {}))[0]
        # bevel's own two are in exactly one module; dp-accounting may move a class inside itself.
        if type(event).__module__.partition(".")[0] != module.partition(".")[0]:
            kind = f"{type(event).__module__}.{kind}"
        names = KINDS.get(kind, ("", {}))[1]
        fields = {name: getattr(event, name) for name in names}
    if not isinstance(kind, str) or kind not in KINDS:
        raise FixArgumentsError(
            f"an event of kind {kind!r} cannot be written to a ledger, because it could not be "
            f"read back. Known kinds: {', '.join(KINDS)}."
        )
    wanted = KINDS[kind][1]
    if set(fields) != set(wanted):
        raise FixArgumentsError(
            f"{kind} with the fields {sorted(fields)}: it has {sorted(wanted)}."
        )
    written = {"kind": kind} | {
        name: _write(wanted[name], f"{kind}.{name}", fields[name], depth) for name in wanted
    }
    _check_together(written)
    return written


def _write(holds: str, name: str, value: Any, depth: int) -> Any:
    if holds == "event":
        return _written(value, depth + 1)
    if holds == "events":
        if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
            raise FixArgumentsError(f"{name}={value!r}: give a list of events.")
        return [_written(event, depth + 1) for event in value]
    return CHECKED[holds](name, value)


def _check_together(written: EventJson) -> None:
    """Raises for fields that are sound by themselves, and not beside each other."""
    kind = written["kind"]
    if kind in AT_MOST:
        part, whole = AT_MOST[kind]
        if written[part] > written[whole]:
            raise FixArgumentsError(
                f"{kind} with {part}={written[part]} and {whole}={written[whole]}: the first is at "
                "most the second."
            )
    if kind == "BallsInBinsDpEvent" and isinstance(written["strategy"][0], list):
        rows, steps = written["strategy"], written["iterations"]
        sound = len(rows) == steps and all(len(row) == steps for row in rows)
        if not sound or any(any(row[at + 1 :]) for at, row in enumerate(rows)):
            raise FixArgumentsError(
                f"{kind}.strategy for {steps} iterations: give a matrix ({steps}, {steps}) that is "
                "lower triangular, or its first column."
            )


def event_from_json(written: Mapping[str, Any]) -> "DpEvent":
    """The event that `event_to_json` wrote. Loads dp-accounting."""
    return _built(event_to_json(written))


def _built(written: EventJson) -> "DpEvent":
    module, fields = KINDS[written["kind"]]
    values = {name: _read(fields[name], written[name]) for name in fields}
    return _event_class(module, written["kind"])(**values)


def _read(holds: str, value: Any) -> Any:
    if holds == "event":
        return _built(value)
    if holds == "events":
        return [_built(event) for event in value]
    if holds == "matrix":
        return tuple(tuple(row) if isinstance(row, list) else row for row in value)
    return value


@functools.cache
def _event_class(module: str, kind: str) -> Any:
    import importlib

    return getattr(importlib.import_module(module), kind)


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or isinstance(value, bool | str):
        raise FixArgumentsError(f"{name}={value!r}: a ledger keeps finite numbers.")
    return number


def _size(name: str, value: Any) -> float:
    number = _number(name, value)
    if number < 0:
        raise FixArgumentsError(f"{name}={value!r}: give a number of at least 0.")
    return number


def _probability(name: str, value: Any) -> float:
    number = _number(name, value)
    if not 0 <= number <= 1:
        raise FixArgumentsError(f"{name}={value!r}: give a probability, from 0 to 1.")
    return number


def _count(name: str, value: Any) -> int:
    if _number(name, value) < 0 or int(value) != value:
        raise FixArgumentsError(f"{name}={value!r}: a ledger keeps whole numbers from 0 on here.")
    return int(value)


def _positive(name: str, value: Any) -> int:
    if _count(name, value) < 1:
        raise FixArgumentsError(f"{name}={value!r}: a ledger keeps whole numbers from 1 on here.")
    return int(value)


def _matrix(name: str, value: Any) -> list[Any]:
    """Coefficients, or rows of them: at least one that is not 0."""
    entries: list[Any] = []
    if isinstance(value, Iterable) and not isinstance(value, str | Mapping):
        entries = list(value)
    rows = [entry for entry in entries if isinstance(entry, list | tuple)]
    if not entries or len(rows) not in (0, len(entries)):
        raise FixArgumentsError(f"{name}={value!r}: give coefficients, or rows of them.")
    numbers = [_number(name, x) for row in rows or [entries] for x in row]
    if not any(numbers):
        raise FixArgumentsError(f"{name} is 0 everywhere: a strategy has entries that are not.")
    if not rows:
        return numbers
    return [[_number(name, x) for x in row] for row in rows]


CHECKED: dict[str, Callable[[str, Any], Any]] = {
    "size": _size,
    "probability": _probability,
    "count": _count,
    "positive": _positive,
    "matrix": _matrix,
}
