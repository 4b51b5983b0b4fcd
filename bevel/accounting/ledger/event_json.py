"""Converts events to JSON and back.

Supports every kind of event that `bevel.accounting` creates or composes, and no others. Writing an
event imports nothing, because events are recognised by the name of their class. Reading one imports
dp-accounting.
"""

import functools
import importlib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from bevel.checks import shown
from bevel.errors import FixArgumentsError

if TYPE_CHECKING:
    from dp_accounting import DpEvent

EventJson: TypeAlias = dict[str, Any]

SAMPLED = {"source_dataset_size": "positive", "sample_size": "positive", "event": "event"}

# For each module, the kinds that it defines, with the types of their fields.
MODULES: dict[str, dict[str, dict[str, str]]] = {
    "dp_accounting": {
        "NoOpDpEvent": {},
        "NonPrivateDpEvent": {},
        "GaussianDpEvent": {"noise_multiplier": "size"},
        "ZCDpEvent": {"rho": "size", "xi": "size"},
        "PoissonSampledDpEvent": {"sampling_probability": "probability", "event": "event"},
        "SampledWithReplacementDpEvent": SAMPLED,
        "SampledWithoutReplacementDpEvent": SAMPLED,
        "TruncatedSubsampledGaussianDpEvent": {
            "dataset_size": "positive",
            "sampling_probability": "probability",
            "truncated_batch_size": "positive",
            "noise_multiplier": "size",
        },
        "SelfComposedDpEvent": {"event": "event", "count": "count"},
        "ComposedDpEvent": {"events": "events"},
    },
    "dp_accounting.dp_event": {
        "RepeatAndSelectDpEvent": {"event": "event", "mean": "mean", "shape": "shape"},
    },
    "bevel.accounting.mixture_events": {
        "BallsInBinsDpEvent": {
            "noise_multiplier": "size",
            "iterations": "positive",
            "cycle_length": "positive",
            "strategy": "matrix",
        },
        "RandomAllocationDpEvent": {
            "noise_multiplier": "size",
            "iterations": "positive",
            "total_participations": "positive",
        },
    },
}
KINDS = {kind: (module, types[kind]) for module, types in MODULES.items() for kind in types}

# For each kind, a field and the field that it must not exceed.
AT_MOST = {
    "SampledWithoutReplacementDpEvent": ("sample_size", "source_dataset_size"),
    "RandomAllocationDpEvent": ("total_participations", "iterations"),
}

# The shape of a Poisson number of runs is infinite, which JSON cannot say.
INFINITE = "infinity"

# Deepest nesting of events: every line that can be written must be readable.
MAX_DEPTH = 32


def event_to_json(event: "DpEvent | Mapping[str, Any]") -> EventJson:
    """Returns an event as JSON: `{"kind": ..., and its fields}`.

    An event that is JSON already is checked and returned. Numbers are kept to the last bit and must
    be valid for their field, such as a noise multiplier of at least 0 or a probability of at most
    1. Raises for a kind that is not in `KINDS`, because it could not be read back and accounted.
    """
    return _to_json(event, 0)


def _to_json(event: "DpEvent | Mapping[str, Any]", depth: int) -> EventJson:
    if depth > MAX_DEPTH:
        raise FixArgumentsError(
            f"the event has events nested more than {MAX_DEPTH} deep. Compose them in one "
            "SelfComposedDpEvent or ComposedDpEvent."
        )
    if isinstance(event, Mapping):
        kind, fields = event.get("kind"), {k: v for k, v in event.items() if k != "kind"}
    else:
        kind = type(event).__name__
        module = KINDS.get(kind, ("", {}))[0]
        # Only the package is compared, because dp-accounting may move a class between modules.
        if type(event).__module__.partition(".")[0] != module.partition(".")[0]:
            kind = f"{type(event).__module__}.{kind}"
        names = KINDS.get(kind, ("", {}))[1]
        fields = {name: getattr(event, name) for name in names}
    if not isinstance(kind, str) or kind not in KINDS:
        raise FixArgumentsError(
            f"an event of kind {shown(kind)} cannot be written to a ledger, because it could not "
            f"be read back. Use one of: {', '.join(KINDS)}."
        )
    types = KINDS[kind][1]
    if set(fields) != set(types):
        raise FixArgumentsError(
            f"{kind} with the fields {sorted(fields)}: pass exactly {sorted(types)}."
        )
    written = {"kind": kind} | {
        name: _field_to_json(types[name], f"{kind}.{name}", fields[name], depth) for name in types
    }
    _check_consistent(written)
    return written


def _field_to_json(field_type: str, name: str, value: Any, depth: int) -> Any:
    if field_type == "event":
        return _to_json(value, depth + 1)
    if field_type == "events":
        if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
            raise FixArgumentsError(f"{name}={value!r}: pass a list of events.")
        return [_to_json(event, depth + 1) for event in value]
    return FIELD_CHECKS[field_type](name, value)


def _check_consistent(written: EventJson) -> None:
    """Raises if fields that are valid on their own contradict each other."""
    kind = written["kind"]
    if kind in AT_MOST:
        smaller, larger = AT_MOST[kind]
        if written[smaller] > written[larger]:
            raise FixArgumentsError(
                f"{kind} with {smaller}={written[smaller]} and {larger}={written[larger]}: pass a "
                f"{smaller} of at most {larger}."
            )
    if kind == "BallsInBinsDpEvent" and isinstance(written["strategy"][0], list):
        rows, steps = written["strategy"], written["iterations"]
        square = len(rows) == steps and all(len(row) == steps for row in rows)
        if not square or any(any(row[diagonal + 1 :]) for diagonal, row in enumerate(rows)):
            raise FixArgumentsError(
                f"{kind}.strategy for {steps} iterations: pass a lower triangular matrix of shape "
                f"({steps}, {steps}), or the first column of a Toeplitz matrix."
            )


def event_from_json(written: Mapping[str, Any]) -> "DpEvent":
    """Returns the event that `event_to_json` wrote. Imports dp-accounting."""
    return _from_json(event_to_json(written))


def _from_json(written: EventJson) -> "DpEvent":
    module, types = KINDS[written["kind"]]
    values = {name: _field_from_json(types[name], written[name]) for name in types}
    event_class: Any = getattr(importlib.import_module(module), written["kind"])
    return event_class(**values)


def _field_from_json(field_type: str, value: Any) -> Any:
    if field_type == "event":
        return _from_json(value)
    if field_type == "events":
        return [_from_json(event) for event in value]
    if field_type == "matrix":
        return tuple(tuple(row) if isinstance(row, list) else row for row in value)
    if field_type == "shape" and value == INFINITE:
        return math.inf
    return value


def _number(
    name: str, value: Any, least: float = -math.inf, most: float = math.inf, what: str = ""
) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or isinstance(value, bool | str):
        raise FixArgumentsError(f"{name}={value!r}: pass a finite number.")
    if not least <= number <= most:
        raise FixArgumentsError(f"{name}={value!r}: pass a {what}.")
    return number


def _count(name: str, value: Any) -> int:
    if _number(name, value) < 0 or int(value) != value:
        raise FixArgumentsError(f"{name}={value!r}: pass an integer of at least 0.")
    return int(value)


def _positive(name: str, value: Any) -> int:
    if _count(name, value) < 1:
        raise FixArgumentsError(f"{name}={value!r}: pass an integer of at least 1.")
    return int(value)


def _shape(name: str, value: Any) -> float | str:
    infinite = value == INFINITE or (isinstance(value, float) and value == math.inf)
    return INFINITE if infinite else _number(name, value, least=0, what="number of at least 0")


def _matrix(name: str, value: Any) -> list[Any]:
    """Returns coefficients, or rows of coefficients, of which at least one is not 0."""
    entries: list[Any] = []
    if isinstance(value, Iterable) and not isinstance(value, str | Mapping):
        entries = list(value)
    rows = [entry for entry in entries if isinstance(entry, list | tuple)]
    if not entries or len(rows) not in (0, len(entries)):
        raise FixArgumentsError(f"{name}={value!r}: pass a list of coefficients, or of rows.")
    numbers = [_number(name, x) for row in rows or [entries] for x in row]
    if not any(numbers):
        raise FixArgumentsError(f"{name} is 0 everywhere: pass at least one nonzero entry.")
    if not rows:
        return numbers
    return [[_number(name, x) for x in row] for row in rows]


FIELD_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "size": functools.partial(_number, least=0, what="number of at least 0"),
    "probability": functools.partial(_number, least=0, most=1, what="probability between 0 and 1"),
    "mean": functools.partial(_number, least=1, what="number of at least 1"),
    "shape": _shape,
    "count": _count,
    "positive": _positive,
    "matrix": _matrix,
}
