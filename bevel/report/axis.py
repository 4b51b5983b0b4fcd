"""The axes of charts: their range, ticks and numbers."""

import dataclasses
import math
from collections.abc import Callable, Sequence

from bevel.report.rounding import power_of_ten

TICKS = 6  # at most this many steps between ticks


def spoken(value: float) -> str:
    """A number with four digits, as descriptions of charts and legends show it."""
    return f"{value:.4g}".replace("-", "−") if math.isfinite(value) else "∞"


@dataclasses.dataclass(frozen=True)
class Axis:
    """An axis: its label, its range, and how its values are written in words."""

    label: str
    low: float
    high: float
    log: bool = False
    in_words: Callable[[float], str] = spoken

    def fraction(self, value: float) -> float:
        """The position of a value on the axis, from 0 at the low end to 1 at the high end."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        return (value - low) / (high - low)

    def ticks(self) -> list[float]:
        if self.log:
            first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
            every = max(1, math.ceil((last - first + 1) / 6))
            return [10.0**power for power in range(first, last + 1, every)]
        step = round_step((self.high - self.low) / TICKS)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]

    def tick_labels(self) -> tuple[list[str], str]:
        """The labels of the ticks, and the power of ten that they leave to the axis label."""
        size = max(abs(self.low), abs(self.high))
        if self.log or 1e-3 <= size < 1e6:
            return [shown(tick) for tick in self.ticks()], ""
        power = math.floor(math.log10(size))
        return [shown(tick / 10.0**power) for tick in self.ticks()], f", in {power_of_ten(power)}"


def round_step(least: float) -> float:
    """The smallest of 1, 2, 5, 10, 20, ... that is at least `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * part for part in (1, 2, 5, 10) if power * part >= least * (1 - 1e-9))


def axis_of(
    label: str,
    values: Sequence[float],
    *,
    include: Sequence[float] = (),
    log: bool = False,
    in_words: Callable[[float], str] = spoken,
) -> Axis:
    """An axis whose range covers all values and those in `include`."""
    if log and min(values) > 0:
        low, high = (math.log10(end) for end in (min(values), max(values)))
        ends = 10 ** math.floor(low), 10 ** max(math.ceil(high), math.floor(low) + 1)
        return Axis(label, *ends, log=True, in_words=in_words)
    low, high = min([*values, *include]), max([*values, *include])
    if high == low:
        pad = abs(high) / 10 or 1.0
        return Axis(label, low - pad, high + pad, in_words=in_words)
    pad = (high - low) * 0.05
    low, high = low if low in include else low - pad, high + pad * (high not in include)
    return Axis(label, low, high, in_words=in_words)


def shown(value: float) -> str:
    """The label of a tick."""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:.6g}".replace("-", "−")
    digits, power = f"{value:.2e}".split("e")
    factor = f"{float(digits):g}·".replace("-", "−")
    return ("" if factor == "1·" else factor) + power_of_ten(int(power))
