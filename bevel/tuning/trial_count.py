"""The distribution of the number of trials of a search."""

import dataclasses
import math

from bevel.accounting.private_selection import LARGEST_SHAPE, halting_probability
from bevel.checks import as_float, is_real, nearest, shown
from bevel.errors import FixArgumentsError
from bevel.tuning.draws import uniform

SHAPES = {"logarithmic": 0.0, "geometric": 1.0, "poisson": math.inf}
MOST_EXPECTED = 10_000
MOST_UNLIKELY = 700.0  # exp(-700) is still a number
# Distributions that are refused, and why.
_FIXED = (
    "the best of a fixed number of trials can cost almost as much as releasing all of them, "
    "because the output with the lowest score wins only if every trial has it"
)
_LIMITED = "bevel has no price for a number of trials that has a limit"
REFUSED = {"fixed": _FIXED, "constant": _FIXED, "truncated": _LIMITED, "uniform": _LIMITED}


@dataclasses.dataclass(frozen=True)
class TrialCount:
    """How many trials a search runs: a random number, which must stay secret.

    Attributes:
      expected: the mean number of trials, above 1.
      distribution: 'logarithmic' (the cheapest, and often a single trial), 'geometric', 'poisson'
        (close to its mean, may be no trial at all, and expensive above a few trials), or the shape
        of a truncated negative binomial distribution: 0 is logarithmic, 1 geometric.

    A fixed number is refused. The output with the lowest score is released only if all k trials
    have it. Let a trial on one data set have it with probability p, and on its neighbour with
    p / e^epsilon. Then the best of k trials has it with p^k and p^k / e^(k epsilon), so the search
    costs k epsilon. A random number may always be 1, which keeps such outputs likely enough.
    """

    expected: float = 10.0
    distribution: str | float = "geometric"

    def __post_init__(self) -> None:
        if not (is_real(self.expected) and 1 < as_float(self.expected) <= MOST_EXPECTED):
            raise FixArgumentsError(
                f"expected_trials={shown(self.expected)}: pass a number above 1, and at most "
                f"{MOST_EXPECTED}. A single trial is an ordinary run, and needs no search."
            )
        object.__setattr__(self, "expected", float(self.expected))
        given = self.distribution
        if isinstance(given, str) and given in SHAPES:
            return
        if isinstance(given, str) and given in REFUSED:
            raise FixArgumentsError(
                f"distribution={given!r}: {REFUSED[given]}. Use 'logarithmic', 'geometric' or "
                "'poisson', or charge every trial with bevel.tuning.charged_grid."
            )
        if not (is_real(given) and 0 <= as_float(given) <= LARGEST_SHAPE):
            near = nearest(given, SHAPES) if isinstance(given, str) else "."
            raise FixArgumentsError(
                f"distribution={shown(given)}{near} Pass one of {', '.join(map(repr, SHAPES))}, or "
                "the shape of a truncated negative binomial distribution, a number from 0 to "
                f"{LARGEST_SHAPE:g}."
            )
        object.__setattr__(self, "distribution", float(given))

    @property
    def shape(self) -> float:
        given = self.distribution
        return SHAPES[given] if isinstance(given, str) else given

    @property
    def is_too_even(self) -> bool:
        """Whether the smallest number is too unlikely to be drawn in floating point."""
        if math.isinf(self.shape):
            return self.expected > MOST_UNLIKELY
        return (
            -self.shape * math.log(halting_probability(self.expected, self.shape)) > MOST_UNLIKELY
        )

    def draw(self, seed: int) -> int:
        """The number of trials of the search with this secret seed."""
        u = uniform(seed, "number of trials")
        number, chance = (0, math.exp(-self.expected)) if math.isinf(self.shape) else self._least()
        total = chance
        while total < u and chance > 0:
            chance *= self._ratio(number)
            number += 1
            total += chance
        return number

    def _least(self) -> tuple[int, float]:
        """The least number of a truncated negative binomial distribution, and its probability."""
        gamma = halting_probability(self.expected, self.shape)
        if self.shape == 0:
            return 1, (1 - gamma) / -math.log(gamma)
        return 1, self.shape * (1 - gamma) / math.expm1(-self.shape * math.log(gamma))

    def _ratio(self, number: int) -> float:
        """P(K = number + 1) / P(K = number)."""
        if math.isinf(self.shape):
            return self.expected / (number + 1)
        gamma = halting_probability(self.expected, self.shape)
        return (1 - gamma) * (number + self.shape) / (number + 1)

    def __str__(self) -> str:
        shape = self.distribution
        law = shape if isinstance(shape, str) else f"negative binomial of shape {shape:g}"
        return f"a {law} number of trials, {self.expected:g} on average"
