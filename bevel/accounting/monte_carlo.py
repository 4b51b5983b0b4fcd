"""Accounting by sampling: an upper confidence bound on delta, whose own failure counts in delta.

For a pair of neighbours with output laws P and Q, delta(epsilon) is the mean over P of
`max(0, 1 - exp(epsilon - loss))`, loss = log(P / Q): a number in [0, 1] per sample. Its mean is
bounded by Hoeffding's inequality in its sharp form: if the mean of n samples is m, the true mean is
above the largest u with n KL(m, u) <= log(1 / f) with probability at most f. The bound is taken at
all epsilons of a grid and in both directions (a record added, a record removed) at once, so an
epsilon may be chosen after the samples were seen.
"""

import bisect
import dataclasses
import functools
import math
import secrets

import numpy as np
import scipy.optimize
import scipy.special

from bevel.accounting.mixture_events import BallsInBinsDpEvent, MixtureDpEvent
from bevel.checks import whole_number
from bevel.errors import FixArgumentsError

# One percent apart: an epsilon in between takes the delta of the one below it.
EPSILONS = np.concatenate([[0.0], np.geomspace(1e-3, 1e3, 1390)])
DIRECTIONS = (True, False)  # the record is there, or it is not
CHUNK = 2**22  # numbers in memory at a time
MOST_SAMPLES = 10**9


@dataclasses.dataclass(frozen=True)
class MonteCarlo:
    """How to sample.

    Attributes:
      num_samples: in each direction. A delta below about 25 / num_samples cannot be shown; with
        100 / delta samples the reported epsilon is a few percent above the true one.
      failure_probability: that a reported bound is too small. It is part of the reported delta.
      seed: of the samples. It does not touch the privacy of a run, but must not be chosen by what
        it gives.
    """

    num_samples: int
    failure_probability: float
    seed: int = dataclasses.field(default_factory=lambda: secrets.randbits(128), repr=False)

    def __post_init__(self) -> None:
        whole_number("num_samples", self.num_samples)
        if not 0 < self.failure_probability < 1:
            raise FixArgumentsError(
                f"failure_probability={self.failure_probability}: give a number between 0 and 1, "
                "well below delta."
            )

    @classmethod
    @functools.lru_cache(maxsize=64)  # one seed per delta: repeated calls agree
    def for_delta(cls, delta: float) -> "MonteCarlo":
        """100 samples for each 1 / delta, and a hundredth of delta to be wrong."""
        if not MOST_SAMPLES * delta >= 100:
            raise FixArgumentsError(
                f"delta={delta} takes {100 / delta:.0e} samples: too many to draw. Use a larger "
                "delta, a sampler with a closed form, or a MonteCarlo of your own."
            )
        return cls(math.ceil(100 / delta), delta / 100)


@dataclasses.dataclass(frozen=True, eq=False)
class SampledLosses:
    """Privacy losses of an event in both directions, positive ones only, sorted."""

    losses: tuple[np.ndarray, ...]
    settings: MonteCarlo

    def delta(self, epsilon: float) -> float:
        """At most this, the chance that it is more included."""
        epsilon = EPSILONS[max(0, int(np.searchsorted(EPSILONS, epsilon, "right")) - 1)]
        return self.bound(max(self.means(epsilon)))

    def bound(self, mean: float) -> float:
        """What a mean over the samples allows for delta, the chance of an error included."""
        failure = self.settings.failure_probability
        each = failure / (len(EPSILONS) * len(DIRECTIONS))
        return min(1.0, upper_mean(mean, self.settings.num_samples, each) + failure)

    def means(self, epsilon: float) -> list[float]:
        """The plain estimates of delta, which are no bounds."""
        above = [losses[np.searchsorted(losses, epsilon, "right") :] for losses in self.losses]
        return [-float(np.expm1(epsilon - x).sum()) / self.settings.num_samples for x in above]

    def epsilon(self, delta: float) -> float:
        """The least epsilon of the grid whose bound is at most `delta`, or infinity."""
        if self.bound(0.0) > delta:
            raise FixArgumentsError(
                f"{self.settings} cannot show delta={delta}: even if no sample exceeded epsilon, "
                f"delta could be {self.bound(0.0):.2g}. Take more samples, or a smaller "
                "failure_probability; MonteCarlo.for_delta(delta) has enough."
            )
        place = bisect.bisect_left(EPSILONS, True, key=lambda e: self.delta(e) <= delta)
        return math.inf if place == len(EPSILONS) else float(EPSILONS[place])


@functools.lru_cache(maxsize=4)  # each holds up to two numbers per sample
def sampled_losses(event: MixtureDpEvent, settings: MonteCarlo) -> SampledLosses:
    """Draws the losses of an event: time and numbers drawn grow with samples times bins."""
    children = np.random.SeedSequence(settings.seed).spawn(len(DIRECTIONS))
    losses = tuple(
        np.sort(positive_losses(event, settings.num_samples, present, np.random.default_rng(child)))
        for present, child in zip(DIRECTIONS, children, strict=True)
    )
    return SampledLosses(losses, settings)


def positive_losses(
    event: MixtureDpEvent, count: int, present: bool, rng: np.random.Generator
) -> np.ndarray:
    """`count` draws of the privacy loss; those above 0, for others never enter a delta."""
    if event.noise_multiplier == 0:
        return np.full(count, np.inf)
    mixtures = _independent_mixtures(event)
    rows = max(1, CHUNK // max(len(mixture.gram) for mixture in mixtures))
    pieces = []
    for at in range(0, count, rows):
        size = min(rows, count - at)
        ratio = np.sum([m.log_ratios(size, present, rng) for m in mixtures], axis=0)
        loss = ratio if present else -ratio
        pieces.append(loss[loss > 0])
    return np.concatenate(pieces)


def _independent_mixtures(event: MixtureDpEvent) -> "list[_Mixture]":
    """Mixtures that an output is made of independently, so that their losses add up."""
    if isinstance(event, BallsInBinsDpEvent):
        shifts = event.shifts() / event.noise_multiplier
        return [_Mixture(shifts @ shifts.T)]
    # k random steps are one random step in each of k parts of a random partition of the steps.
    parts = np.array_split(np.arange(event.iterations), event.total_participations)
    return [_Mixture(np.eye(len(part)) / event.noise_multiplier**2) for part in parts]


@dataclasses.dataclass(frozen=True, eq=False)
class _Mixture:
    """N(shift_i, I) with equal weights, against N(0, I), by the products of the shifts.

    The ratio of the two depends on an output only through its products with the shifts, which are
    Gaussian with the Gram matrix as covariance: as many numbers per draw as there are shifts, not
    as many as steps.
    """

    gram: np.ndarray

    @functools.cached_property
    def root(self) -> np.ndarray:
        """A matrix (or vector, for a diagonal one) whose product with its transpose is `gram`."""
        squares = np.diagonal(self.gram)
        if np.array_equal(self.gram, np.diag(squares)):
            return np.sqrt(squares)
        values, vectors = np.linalg.eigh(self.gram)
        return vectors * np.sqrt(np.maximum(values, 0))

    def log_ratios(self, count: int, present: bool, rng: np.random.Generator) -> np.ndarray:
        """log(mixture / N(0, I)) at `count` draws from the first, or from the second."""
        size = len(self.gram)
        normal = rng.standard_normal((count, size))
        exponents = normal * self.root if self.root.ndim == 1 else normal @ self.root.T
        if present:
            exponents += self.gram[rng.integers(size, size=count)]
        exponents -= np.diagonal(self.gram) / 2
        # scipy's logsumexp copies these many numbers ten times.
        largest = exponents.max(axis=1)
        exponents -= largest[:, None]
        return np.log(np.exp(exponents, out=exponents).sum(axis=1)) + largest - math.log(size)


def upper_mean(mean: float, count: int, failure: float) -> float:
    """Above this is the true mean of numbers in [0, 1] with probability at most `failure`."""
    room = -math.log(failure) / count

    def excess(upper: float) -> float:
        return float(scipy.special.rel_entr([mean, 1 - mean], [upper, 1 - upper]).sum()) - room

    almost_one = 1 - 1e-15
    if mean >= almost_one or excess(almost_one) <= 0:
        return 1.0
    root = scipy.optimize.brentq(excess, mean, almost_one, xtol=1e-18, rtol=1e-12)
    return min(1.0, root * (1 + 1e-11))
