"""The settings that a search draws from: one distribution for each name, chosen before the data.

Every trial draws all of its settings independently of the other trials, so trials are independent
and identically distributed, which the price of a search assumes.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from bevel.checks import as_float, is_real, positive_number, shown, text
from bevel.errors import FixArgumentsError
from bevel.training.metrics_files import to_json
from bevel.training.program_digest import ADDRESS
from bevel.tuning.draws import uniform

Settings = dict[str, Any]


class Distribution(Protocol):
    """The values of one setting, and how likely each is."""

    def value(self, u: float) -> Any:
        """The value at a number that is uniform between 0 and 1."""
        ...

    def ends(self) -> tuple[Any, ...]:
        """The values that are compared to find the most expensive: the ends, or all choices."""
        ...


@dataclasses.dataclass(frozen=True)
class Uniform:
    """Any number from `low` to `high`, all equally likely."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _check_range(self.low, self.high)

    def value(self, u: float) -> float:
        return min(max(self.low + u * (self.high - self.low), self.low), self.high)

    def ends(self) -> tuple[float, ...]:
        return (self.low, self.high)


@dataclasses.dataclass(frozen=True)
class LogUniform:
    """A positive number from `low` to `high`, each order of magnitude equally likely."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _check_range(self.low, self.high)
        positive_number("low", self.low, "because its logarithm is drawn")
        if math.isinf(self.high / self.low):
            raise FixArgumentsError(
                f"low={self.low!r}, high={self.high!r}: high / low overflows. Pass a larger low."
            )

    def value(self, u: float) -> float:
        drawn = self.low * math.exp(u * math.log(self.high / self.low))
        return min(max(drawn, self.low), self.high)

    def ends(self) -> tuple[float, ...]:
        return (self.low, self.high)


@dataclasses.dataclass(frozen=True)
class OneOf:
    """One of several values, all equally likely: `OneOf("sgd", "adam")`."""

    values: tuple[Any, ...]

    def __init__(self, *values: Any) -> None:
        if not values:
            raise FixArgumentsError("OneOf() has no values: pass at least one, as in OneOf(1, 2).")
        object.__setattr__(self, "values", values)

    def value(self, u: float) -> Any:
        return self.values[min(int(u * len(self.values)), len(self.values) - 1)]

    def ends(self) -> tuple[Any, ...]:
        return self.values


def _check_range(low: Any, high: Any) -> None:
    known = is_real(low) and is_real(high)
    if not (known and 0 < as_float(high) - as_float(low) < math.inf):
        raise FixArgumentsError(
            f"low={shown(low)}, high={shown(high)}: pass two finite numbers, low < high, whose "
            "difference is finite."
        )


def checked_space(space: Mapping[str, Distribution]) -> dict[str, Distribution]:
    """Returns the space as a dict. Raises unless every name has a distribution of values."""
    if not isinstance(space, Mapping) or not space:
        raise FixArgumentsError(
            f"space={shown(space)}: pass a dict of names and distributions, such as "
            '{"learning_rate": LogUniform(1e-3, 1.0)}.'
        )
    for name, distribution in space.items():
        text("a name in space", name)
        if not (hasattr(distribution, "value") and hasattr(distribution, "ends")):
            raise FixArgumentsError(
                f"space[{name!r}]={shown(distribution)}: pass Uniform(low, high), "
                "LogUniform(low, high) or OneOf(value, ...)."
            )
        _check_recorded(name, distribution)
    return dict(space)


def _check_recorded(name: str, distribution: Distribution) -> None:
    """Raises for values that the record of the result could not hold, before any is charged."""
    for value in distribution.ends():
        try:
            to_json(value)
        except FixArgumentsError:
            raise FixArgumentsError(
                f"space[{name!r}] has the value {shown(value)}, which cannot be recorded with the "
                "result. Pass numbers or names, and choose by them in make_trainer."
            ) from None
    if ADDRESS.search(repr(distribution)):
        raise FixArgumentsError(
            f"space[{name!r}]={distribution!r} has another repr in each process, so the search "
            "could not be started again. Give the class a __repr__, as dataclasses have."
        )


def drawn_settings(space: Mapping[str, Distribution], seed: int, trial: int) -> Settings:
    """The settings of one trial, a function of the seed and of the number of the trial."""
    return {name: d.value(uniform(seed, f"{trial} {name}")) for name, d in space.items()}


def grid_of(space: Mapping[str, Distribution]) -> list[Settings]:
    """All combinations of choices. Raises if there is anything but choices."""
    for name, distribution in space.items():
        if not isinstance(distribution, OneOf):
            raise FixArgumentsError(
                f"space[{name!r}]={shown(distribution)} has infinitely many values, but a grid "
                "tries all of them: pass OneOf(value, ...)."
            )
        if len({repr(value) for value in distribution.values}) < len(distribution.values):
            raise FixArgumentsError(
                f"space[{name!r}]={shown(distribution)} has a value twice, so the same trial would "
                "be trained and charged twice. Leave one out."
            )
    return combinations({name: distribution.ends() for name, distribution in space.items()})


def combinations(values: Mapping[str, Iterable[Any]]) -> list[Settings]:
    """All ways to choose one value for every name."""
    return [
        dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())
    ]
