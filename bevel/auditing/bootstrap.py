"""Bootstrap quantiles of a statistic of the scores, with bias correction and acceleration."""

import dataclasses
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import special

from bevel.auditing.arguments import Floats, Ints
from bevel.auditing.score_cuts import Counts
from bevel.checks import flag, is_real, reals, shown, whole_number
from bevel.errors import FixArgumentsError

# A statistic of the counts at all cuts. It may be an array, but not change its shape.
Statistic = Callable[[Counts], Floats | float]


@dataclasses.dataclass(frozen=True)
class BootstrapParams:
    """Which quantiles to estimate by the bootstrap, and how.

    Held-in and held-out scores are drawn with replacement, each group apart, and the statistic is
    computed for every such resample. Quantiles describe the spread of the statistic; they are no
    proof, unlike the bounds that take a `significance`.

    Attributes:
        num_samples: The number of resamples.
        quantiles: The quantiles to return, a number or an array.
        bias_correction: Shifts the quantiles by the median bias of the resamples (BC).
        acceleration: Also corrects for a spread that changes with the statistic (BCa). This takes
            a jackknife, which computes the statistic once for almost every score.
        seed: Of the resamples. None takes fresh entropy.

    Source: Efron, 1987, "Better Bootstrap Confidence Intervals".
    """

    num_samples: int = 1000
    quantiles: npt.ArrayLike = (0.025, 0.975)
    bias_correction: bool = True
    acceleration: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        whole_number("num_samples", self.num_samples, 1, 10**7, "Each is a sample of the canaries.")
        flag("bias_correction", self.bias_correction)
        flag("acceleration", self.acceleration)
        hint = "quantiles must be between 0 and 1: pass for example (0.025, 0.975)"
        quantiles = reals("quantiles", self.quantiles, (0, 1, 2), hint)
        if not (quantiles.size and ((quantiles >= 0) & (quantiles <= 1)).all()):
            raise FixArgumentsError(
                f"quantiles={shown(self.quantiles)} must be between 0 and 1: pass for example "
                "(0.025, 0.975) for an interval of 95 % confidence."
            )
        if self.seed is not None:
            whole_number("seed", self.seed, 0, 2**128)

    @classmethod
    def confidence_interval(
        cls, num_samples: int = 1000, confidence: float = 0.95, seed: int | None = None
    ) -> "BootstrapParams":
        """Settings for the two ends of an interval with equal tails."""
        if not (is_real(confidence) and 0 < confidence < 1):
            raise FixArgumentsError(
                f"confidence={shown(confidence)} must be between 0 and 1, both excluded: pass for "
                "example 0.95."
            )
        tail = (1 - confidence) / 2
        return cls(num_samples=num_samples, quantiles=(tail, 1 - tail), seed=seed)


def bootstrap_quantiles(counts: Counts, statistic: Statistic, params: BootstrapParams) -> Floats:
    """Quantiles of a statistic, with the shape of `params.quantiles` followed by its own.

    With z0 = Phi^-1(share of resamples below the statistic) and acceleration a, the quantile p is
    the quantile Phi(z0 + (z0 + z) / (1 - a (z0 + z))) of the resamples, where z = Phi^-1(p).
    `counts` are the positives at the cuts that the statistic needs, in order.
    """
    rng = np.random.default_rng(params.seed)
    samples = np.array([statistic(_resample(counts, rng)) for _ in range(params.num_samples)])
    z = special.ndtri(np.asarray(params.quantiles, float))
    z = z.reshape(z.shape + (1,) * (samples.ndim - 1))
    bias, speed = np.zeros(samples.shape[1:]), np.zeros(samples.shape[1:])
    if params.bias_correction:
        estimate = np.asarray(statistic(counts))
        share = ((samples < estimate).mean(0) + (samples <= estimate).mean(0)) / 2
        # If all resamples are on one side, the bias is as large as this many can show.
        least = 0.5 / params.num_samples
        bias = special.ndtri(np.clip(share, least, 1 - least))
    if params.acceleration:
        speed = _acceleration(counts, statistic)
    with np.errstate(invalid="ignore", divide="ignore"):
        # Far in the tails, the denominator reaches 0, and the quantile is the most extreme one.
        shifted = bias + (bias + z) / np.maximum(1 - speed * (bias + z), 0)
    return _quantiles(samples, special.ndtr(np.where(np.isinf(z), z, shifted)))


def _resample(counts: Counts, rng: np.random.Generator) -> Counts:
    """The counts if as many scores of each group are drawn with replacement.

    The scores of a group are numbered from the highest. Those above a cut with k positives are the
    first k, so it is enough to know how often each number was drawn.
    """

    def drawn(positives: Ints) -> Ints:
        total = int(positives[-1])
        times = np.bincount(rng.integers(0, total, total), minlength=total)
        return np.concatenate([[0], np.cumsum(times)])[positives]

    return Counts(drawn(counts.true_positives), drawn(counts.false_positives))


def _quantiles(samples: Floats, levels: Floats) -> Floats:
    """The quantile of the samples at each level, which may differ between entries."""
    samples = np.sort(samples, axis=0)
    position = levels * (len(samples) - 1)
    below = np.floor(position).astype(np.int64)
    above = np.minimum(below + 1, len(samples) - 1)
    entries = np.indices(samples.shape[1:], sparse=True)
    low, high = samples[(below, *entries)], samples[(above, *entries)]
    with np.errstate(invalid="ignore"):  # inf - inf, where both neighbours are infinite
        between = low + (position - below) * (high - low)
    return np.where(low == high, low, between)


def _acceleration(counts: Counts, statistic: Statistic) -> Floats:
    """Efron's acceleration for two samples, from the statistic without each score in turn."""
    cubes, squares = np.zeros(()), np.zeros(())
    for group, positives in enumerate(counts):
        total = int(positives[-1])
        if total == 1:
            continue  # nothing is left to compute the statistic from
        # Leaving out any of the scores between two cuts is the same.
        times = np.diff(positives, prepend=0)
        first = np.flatnonzero(times)
        values = []
        for cut in first:
            fewer = list(counts)
            fewer[group] = positives - (np.arange(positives.size) >= cut)
            values.append(statistic(Counts(*fewer)))
        found = np.array(values)
        weights = times[first].reshape((-1,) + (1,) * (found.ndim - 1))
        influence = (total - 1) * ((weights * found).sum(0) / total - found)
        cubes = cubes + (weights * influence**3).sum(0) / total**3
        squares = squares + (weights * influence**2).sum(0) / total**2
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.nan_to_num(cubes / (6 * squares**1.5))
