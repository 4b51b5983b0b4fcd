"""Finds the noise of a wanted epsilon in few evaluations, for each may take a second."""

import dataclasses
import math
from collections.abc import Callable

from bevel.errors import FixArgumentsError

# Noise multipliers that are searched: with less, an event costs nothing that a budget could hold.
LEAST_NOISE, MOST_NOISE = 1e-2, 1e9


@dataclasses.dataclass
class NoiseSearch:
    """The secant method, in a bracket, for log(epsilon) over log(noise): nearly a line."""

    goal: float
    slope: float = -1.5  # of that line; learned along the way, and kept for the next accountant

    def near(self, cost: Callable[[float], float], noise: float) -> float:
        """A noise of about the goal: found to a percent, and moved on by what is left."""
        found, value = self.search(cost, noise, 0.99 * self.goal, 1.01 * self.goal)
        return found * math.exp(self.step(value))

    def within(
        self, cost: Callable[[float], float], noise: float, least: float, most: float
    ) -> float:
        """A noise with `least <= cost(noise) <= most`.

        Where the cost jumps over that range, the least noise that costs at most `most`.
        """
        return self.search(cost, noise, least, most)[0]

    def search(
        self, cost: Callable[[float], float], noise: float, least: float, most: float
    ) -> tuple[float, float]:
        low, high = math.log(LEAST_NOISE), math.log(MOST_NOISE)
        value_at_high = math.nan
        x, before = min(max(math.log(noise), low), high), None
        while True:
            value = cost(math.exp(x))
            if least <= value <= most:
                return math.exp(x), value
            if value > most:
                low = x
            else:
                high, value_at_high = x, value
            if high - low < 1e-9:
                break
            if before is not None and x != before[0] and 0 < value < math.inf > before[1] > 0:
                slope = math.log(value / before[1]) / (x - before[0])
                self.slope = slope if -20 < slope < -0.3 else self.slope
            before = (x, value)
            x += self.step(value)
            if not low < x < high:
                x = (low + high) / 2
        if math.isnan(value_at_high) or math.exp(high) < 1.01 * LEAST_NOISE:
            kept = "not kept with any" if math.isnan(value_at_high) else "kept without"
            raise FixArgumentsError(
                f"an epsilon of {most} is {kept} noise: the last epsilon found is {value}. Look at "
                "the sampling probability and the event."
            )
        return math.exp(high), value_at_high

    def step(self, value: float) -> float:
        """By how much log(noise) has to change, on the line through `value`."""
        bounded = min(max(value, self.goal / 100), self.goal * 100)
        return math.log(self.goal / bounded) / self.slope
