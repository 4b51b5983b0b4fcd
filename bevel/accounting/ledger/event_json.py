"""Events as JSON and back: every kind that `bevel.accounting` makes or composes, and no other.

Writing an event loads nothing: an event is known by the name of its class. Reading one loads
dp-accounting.
"""

import functools
import math
from collections.abc import Mapping
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
    "GaussianDpEvent": (DP_ACCOUNTING, {"noise_multiplier": "number"}),
    "ZCDpEvent": (DP_ACCOUNTING, {"rho": "number", "xi": "number"}),
    "PoissonSampledDpEvent": (
        DP_ACCOUNTING,
        {"sampling_probability": "number", "event": "event"},
    ),
    "SampledWithReplacementDpEvent": (
        DP_ACCOUNTING,
        {"source_dataset_size": "count", "sample_size": "count", "event": "event"},
    ),
    "SampledWithoutReplacementDpEvent": (
        DP_ACCOUNTING,
        {"source_dataset_size": "count", "sample_size": "count", "event": "event"},
    ),
    "TruncatedSubsampledGaussianDpEvent": (
        DP_ACCOUNTING,
        {
            "dataset_size": "count",
            "sampling_probability": "number",
            "truncated_batch_size": "count",
            "noise_multiplier": "number",
        },
    ),
    "SelfComposedDpEvent": (DP_ACCOUNTING, {"event": "event", "count": "count"}),
    "ComposedDpEvent": (DP_ACCOUNTING, {"events": "events"}),
    "BallsInBinsDpEvent": (
        BEVEL,
        {
            "noise_multiplier": "number",
            "iterations": "count",
            "cycle_length": "count",
            "strategy": "matrix",
        },
    ),
    "RandomAllocationDpEvent": (
        BEVEL,
        {"noise_multiplier": "number", "iterations": "count", "total_participations": "count"},
    ),
}


def event_to_json(event: "DpEvent | Mapping[str, Any]") -> EventJson:
    """An event as JSON: `{"kind": ..., and its fields}`. JSON of an event is checked and returned.

    Numbers are kept to the last bit. Raises for a kind that is not in `KINDS`: what could not be
    read back could not be accounted.
    """
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
    if kind not in KINDS:
        raise FixArgumentsError(
            f"an event of kind {kind!r} cannot be written to a ledger, for it could not be read "
            f"back. Known kinds: {', '.join(KINDS)}."
        )
    wanted = KINDS[kind][1]
    if set(fields) != set(wanted):
        raise FixArgumentsError(
            f"{kind} with the fields {sorted(fields)}: it has {sorted(wanted)}."
        )
    return {"kind": kind} | {
        name: WRITE[wanted[name]](f"{kind}.{name}", fields[name]) for name in wanted
    }


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
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number) or isinstance(value, bool | str):
        raise FixArgumentsError(f"{name}={value!r}: a ledger keeps finite numbers.")
    return number


def _count(name: str, value: Any) -> int:
    if _number(name, value) < 0 or int(value) != value:
        raise FixArgumentsError(f"{name}={value!r}: a ledger keeps whole numbers from 0 on here.")
    return int(value)


def _event(name: str, value: Any) -> EventJson:
    del name
    return event_to_json(value)


def _events(name: str, value: Any) -> list[EventJson]:
    if isinstance(value, str | Mapping):
        raise FixArgumentsError(f"{name}={value!r}: give a list of events.")
    return [event_to_json(event) for event in value]


def _matrix(name: str, value: Any) -> list[Any]:
    if isinstance(value, str | Mapping) or not hasattr(value, "__iter__"):
        raise FixArgumentsError(f"{name}={value!r}: give coefficients, or rows of them.")
    return [
        [_number(name, x) for x in row] if isinstance(row, list | tuple) else _number(name, row)
        for row in value
    ]


WRITE = {
    "number": _number,
    "count": _count,
    "event": _event,
    "events": _events,
    "matrix": _matrix,
}
