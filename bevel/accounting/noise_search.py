"""Finds the noise multiplier for an epsilon in few evaluations, since each may take a second."""

import dataclasses
import math
from collections.abc import Callable

from bevel.errors import FixArgumentsError

# Range of the search. With less noise, epsilon is too large for any sensible budget.
LEAST_NOISE, MOST_NOISE = 1e-2, 1e9


@dataclasses.dataclass
class NoiseSearch:
    """A bracketed secant search on log(epsilon) as a function of log(noise), nearly a line."""

    goal: float
    slope: float = -1.5  # of that line; updated by each search and reused by the next one

    def near(self, cost: Callable[[float], float], noise: float) -> float:
        """Searches until the cost is within 1% of the goal, then takes one more secant step."""
        noise, value = self.search(cost, noise, 0.99 * self.goal, 1.01 * self.goal)
        return noise * math.exp(self.step(value))

    def within(
        self, cost: Callable[[float], float], noise: float, min_cost: float, max_cost: float
    ) -> float:
        """Returns a noise with `min_cost <= cost(noise) <= max_cost`.

        If the cost jumps over that range, returns the least noise that costs at most `max_cost`.
        """
        return self.search(cost, noise, min_cost, max_cost)[0]

    def search(
        self, cost: Callable[[float], float], noise: float, min_cost: float, max_cost: float
    ) -> tuple[float, float]:
        low, high = math.log(LEAST_NOISE), math.log(MOST_NOISE)
        value_at_high = math.nan
        x, previous = min(max(math.log(noise), low), high), None
        while True:
            value = cost(math.exp(x))
            if min_cost <= value <= max_cost:
                return math.exp(x), value
            if value > max_cost:
                low = x
            else:
                high, value_at_high = x, value
            if high - low < 1e-9:
                break
            if previous is not None and x != previous[0] and 0 < value < math.inf > previous[1] > 0:
                slope = math.log(value / previous[1]) / (x - previous[0])
                self.slope = slope if -20 < slope < -0.3 else self.slope
            previous = (x, value)
            x += self.step(value)
            if not low < x < high:
                x = (low + high) / 2
        if math.isnan(value_at_high) or math.exp(high) < 1.01 * LEAST_NOISE:
            met = "is not met with any" if math.isnan(value_at_high) else "is met with almost no"
            raise FixArgumentsError(
                f"epsilon={max_cost} {met} noise: the last epsilon computed is {value}. Check the "
                "sampling probability and the event."
            )
        return math.exp(high), value_at_high

    def step(self, value: float) -> float:
        """Returns the change of log(noise) that reaches the goal, on the line through `value`."""
        bounded = min(max(value, self.goal / 100), self.goal * 100)
        return math.log(self.goal / bounded) / self.slope
