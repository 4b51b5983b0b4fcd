"""How a bound chooses the threshold above which a canary is taken to be held in.

A threshold that was chosen because it looks best on the same scores makes a bound too high. Each
strategy is a way to avoid this. What it does for a bound is described there.
"""

import dataclasses
import math

import numpy as np

from bevel.checks import as_float, is_real, shown, whole_number
from bevel.errors import FixArgumentsError


class ThresholdStrategy:
    """Base class of the strategies."""


@dataclasses.dataclass(frozen=True)
class Bonferroni(ThresholdStrategy):
    """Tries all thresholds, or many, each with a significance that is divided by their number."""


@dataclasses.dataclass(frozen=True)
class Explicit(ThresholdStrategy):
    """Uses one threshold, which must be chosen without looking at the scores.

    Scores above the threshold count as held in; scores that are equal to it do not.
    """

    threshold: float

    def __post_init__(self) -> None:
        if not is_real(self.threshold) or math.isnan(as_float(self.threshold)):
            raise FixArgumentsError(
                f"threshold={shown(self.threshold)}: pass a number, fixed before the scores are "
                "seen."
            )


@dataclasses.dataclass(frozen=True)
class Split(ThresholdStrategy):
    """Chooses the threshold on a random part of the canaries, and bounds on the rest.

    Attributes:
        threshold_estimation_frac: The share of the canaries that choose the threshold.
        seed: Of the split. None takes fresh entropy. Do not try several seeds and report the best.
    """

    threshold_estimation_frac: float = 0.5
    seed: int | None = None

    def __post_init__(self) -> None:
        _check_split(self.threshold_estimation_frac, self.seed)


@dataclasses.dataclass(frozen=True)
class MultiSplit(ThresholdStrategy):
    """The median bound of several random splits, each at half the significance.

    The median is valid. A split at significance a / 2 gives a bound above the truth with
    probability at most a / 2, so the expected share of splits with such a bound is at most a / 2.
    If the median is above the truth, then so are at least half of the bounds, which happens with
    probability at most (a / 2) / (1 / 2) = a, by Markov's inequality. This also holds for an even
    number of splits, for which the median is the mean of the two middle bounds, because the larger
    one is then above the truth.

    Source: Meinshausen, Meier and Bühlmann, 2009, "p-Values for High-Dimensional Regression".

    Attributes:
        num_samples: The number of splits.
        threshold_estimation_frac: The share of the canaries that choose the threshold.
        seed: Of the splits. None takes fresh entropy.
    """

    num_samples: int = 100
    threshold_estimation_frac: float = 0.5
    seed: int | None = None

    def __post_init__(self) -> None:
        whole_number("num_samples", self.num_samples, 1, 10**6, "Each is a split of the canaries.")
        _check_split(self.threshold_estimation_frac, self.seed)


def split_size(frac: float, num_canaries: int) -> int:
    """The number of canaries that choose the threshold; one of two or more stays on each side."""
    return int(np.clip(round(frac * num_canaries), 1, max(num_canaries - 1, 1)))


def unknown_strategy(strategy: object) -> FixArgumentsError:
    """The error for something that is not one of the strategies of this file."""
    return FixArgumentsError(
        f"threshold_strategy={shown(strategy)}: pass Bonferroni(), Explicit(threshold), Split() or "
        "MultiSplit() of bevel.auditing."
    )


def _check_split(frac: float, seed: int | None) -> None:
    if not (is_real(frac) and 0 < frac < 1):
        raise FixArgumentsError(
            f"threshold_estimation_frac={shown(frac)} must be between 0 and 1, both excluded: pass "
            "the share of the canaries that choose the threshold, such as 0.5."
        )
    if seed is not None:
        whole_number("seed", seed, 0, 2**128)
