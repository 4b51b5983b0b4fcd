"""Bounds delta by Monte Carlo sampling of privacy losses.

The result is an upper confidence bound. The probability that the bound fails is added to delta.

For neighbours whose outputs have the distributions P and Q, delta(epsilon) is the mean over P of
`max(0, 1 - exp(epsilon - loss))` with loss = log(P / Q), a number in [0, 1] for each sample. The
sharp form of Hoeffding's inequality bounds this mean: if n samples have the mean m, then with
probability at most f the true mean exceeds the largest u with n KL(m, u) <= log(1 / f). The bound
holds jointly for all epsilons of a grid and for both directions (a record added, a record removed),
so you may choose an epsilon after seeing the samples.
"""

import bisect
import dataclasses
import functools
import math
import secrets

import numpy as np
import scipy.optimize
import scipy.special

from bevel.accounting.arguments import check_budget
from bevel.accounting.mixture_events import BallsInBinsDpEvent, MixtureDpEvent
from bevel.checks import finite_number, is_real, shown, whole_number
from bevel.errors import FixArgumentsError

# One percent apart. An epsilon in between gets the delta of the grid point below it.
EPSILONS = np.concatenate([[0.0], np.geomspace(1e-3, 1e3, 1390)])
DIRECTIONS = (True, False)  # whether samples are drawn with the record present
CHUNK = 2**22  # numbers in memory at a time
MOST_SAMPLES = 10**9
# The seed of the epsilons that runs, ledgers and statements state. It was not chosen by a result.
STATED_SEED = int.from_bytes(b"bevel.accounting", "big")


@dataclasses.dataclass(frozen=True)
class MonteCarlo:
    """Settings for events that are bounded by Monte Carlo sampling.

    Attributes:
      num_samples: number of samples in each direction. A delta below about 25 / num_samples cannot
        be shown. With 100 / delta samples the reported epsilon is a few percent above the true one.
      failure_probability: probability that a reported bound is too small. It is included in the
        reported delta.
      seed: seed of the samples. It does not affect the privacy of a run, but do not choose it by
        the result it gives.
    """

    num_samples: int
    failure_probability: float
    seed: int = dataclasses.field(default_factory=lambda: secrets.randbits(128), repr=False)

    def __post_init__(self) -> None:
        why = "Samples are held in memory."
        whole_number("num_samples", self.num_samples, 1, MOST_SAMPLES, why)
        whole_number("seed", self.seed, 0, 2**128 - 1)
        failure = self.failure_probability
        if not (is_real(failure) and 0 < failure < 1):
            raise FixArgumentsError(
                f"failure_probability={shown(failure)}: pass a number between 0 and 1, well below "
                "delta."
            )

    @classmethod
    def for_delta(cls, delta: float) -> "MonteCarlo":
        """Uses 100 / delta samples, and a hundredth of delta as the failure probability.

        The seed is fixed and public, so that everyone who reads a ledger computes the same epsilon.
        """
        delta = finite_number("delta", delta, "well below one over the number of examples", 0, 1)
        check_budget(delta=delta)
        return cls._for_delta(delta)

    @classmethod
    @functools.lru_cache(maxsize=64)
    def _for_delta(cls, delta: float) -> "MonteCarlo":
        if not MOST_SAMPLES * delta >= 100:
            raise FixArgumentsError(
                f"delta={delta} needs {100 / delta:.0e} samples, which is too many. Use a larger "
                "delta, a sampler with a closed form, or pass your own monte_carlo=MonteCarlo(...)."
            )
        return cls(math.ceil(100 / delta), delta / 100, STATED_SEED)


@dataclasses.dataclass(frozen=True, eq=False)
class SampledLosses:
    """The positive privacy losses of an event, sorted, one array for each direction."""

    losses: tuple[np.ndarray, ...]
    settings: MonteCarlo

    def delta(self, epsilon: float) -> float:
        """Returns an upper bound on delta that includes the failure probability."""
        epsilon = EPSILONS[max(0, int(np.searchsorted(EPSILONS, epsilon, "right")) - 1)]
        return self.bound(max(self.means(epsilon)))

    def bound(self, mean: float) -> float:
        """Returns the bound on delta for a sample mean, failure probability included."""
        failure = self.settings.failure_probability
        each = failure / (len(EPSILONS) * len(DIRECTIONS))
        return min(1.0, upper_confidence_bound(mean, self.settings.num_samples, each) + failure)

    def means(self, epsilon: float) -> list[float]:
        """Returns the sample means that estimate delta. They are not bounds."""
        above = [losses[np.searchsorted(losses, epsilon, "right") :] for losses in self.losses]
        return [-float(np.expm1(epsilon - x).sum()) / self.settings.num_samples for x in above]

    def epsilon(self, delta: float) -> float:
        """Returns the least epsilon of the grid whose bound is at most `delta`, or infinity."""
        if self.bound(0.0) > delta:
            raise FixArgumentsError(
                f"{self.settings} cannot show delta={delta}: even if no sample exceeds epsilon, "
                f"delta may be {self.bound(0.0):.2g}. Use more samples or a smaller "
                "failure_probability, or use MonteCarlo.for_delta(delta)."
            )
        index = bisect.bisect_left(EPSILONS, True, key=lambda e: self.delta(e) <= delta)
        return math.inf if index == len(EPSILONS) else float(EPSILONS[index])


@functools.lru_cache(maxsize=4)  # each holds up to two numbers per sample
def sampled_losses(event: MixtureDpEvent, settings: MonteCarlo) -> SampledLosses:
    """Samples the privacy losses of an event. The cost grows with samples times bins."""
    children = np.random.SeedSequence(settings.seed).spawn(len(DIRECTIONS))
    losses = tuple(
        np.sort(positive_losses(event, settings.num_samples, present, np.random.default_rng(child)))
        for present, child in zip(DIRECTIONS, children, strict=True)
    )
    return SampledLosses(losses, settings)


def positive_losses(
    event: MixtureDpEvent, count: int, present: bool, rng: np.random.Generator
) -> np.ndarray:
    """Draws `count` privacy losses and returns the positive ones. Others do not affect delta."""
    if event.noise_multiplier == 0:
        return np.full(count, np.inf)
    mixtures = _independent_mixtures(event)
    rows = max(1, CHUNK // max(len(mixture.gram) for mixture in mixtures))
    chunks = []
    for start in range(0, count, rows):
        size = min(rows, count - start)
        ratio = np.sum([m.log_ratios(size, present, rng) for m in mixtures], axis=0)
        loss = ratio if present else -ratio
        chunks.append(loss[loss > 0])
    return np.concatenate(chunks)


def _independent_mixtures(event: MixtureDpEvent) -> "list[_Mixture]":
    """Returns the independent mixtures that make up the output, so that their losses add up."""
    if isinstance(event, BallsInBinsDpEvent):
        shifts = event.shifts() / event.noise_multiplier
        return [_Mixture(shifts @ shifts.T)]
    # k random steps are one random step in each part of a random partition into k parts.
    parts = np.array_split(np.arange(event.iterations), event.total_participations)
    return [_Mixture(np.eye(len(part)) / event.noise_multiplier**2) for part in parts]


@dataclasses.dataclass(frozen=True, eq=False)
class _Mixture:
    """An equal mixture of N(shift_i, I) against N(0, I), given by the Gram matrix of the shifts.

    The density ratio depends on an output only through its inner products with the shifts. They are
    Gaussian with the Gram matrix as covariance, so a draw needs one number for each shift instead
    of one for each step.
    """

    gram: np.ndarray

    @functools.cached_property
    def root(self) -> np.ndarray:
        """A square root R with R R^T = `gram`; only its diagonal, if `gram` is diagonal."""
        squares = np.diagonal(self.gram)
        if np.array_equal(self.gram, np.diag(squares)):
            return np.sqrt(squares)
        values, vectors = np.linalg.eigh(self.gram)
        return vectors * np.sqrt(np.maximum(values, 0))

    def log_ratios(self, count: int, present: bool, rng: np.random.Generator) -> np.ndarray:
        """log(mixture / N(0, I)) at `count` draws from the mixture if `present`, else N(0, I)."""
        size = len(self.gram)
        normal = rng.standard_normal((count, size))
        exponents = normal * self.root if self.root.ndim == 1 else normal @ self.root.T
        if present:
            exponents += self.gram[rng.integers(size, size=count)]
        exponents -= np.diagonal(self.gram) / 2
        # Not scipy's logsumexp, which copies this large array ten times.
        largest = exponents.max(axis=1)
        exponents -= largest[:, None]
        return np.log(np.exp(exponents, out=exponents).sum(axis=1)) + largest - math.log(size)


def upper_confidence_bound(mean: float, count: int, failure: float) -> float:
    """The true mean of numbers in [0, 1] exceeds this with probability at most `failure`."""
    largest_kl = -math.log(failure) / count

    def excess(upper: float) -> float:
        kl = float(scipy.special.rel_entr([mean, 1 - mean], [upper, 1 - upper]).sum())
        return kl - largest_kl

    almost_one = 1 - 1e-15
    if mean >= almost_one or excess(almost_one) <= 0:
        return 1.0
    root = scipy.optimize.brentq(excess, mean, almost_one, xtol=1e-18, rtol=1e-12)
    return min(1.0, root * (1 + 1e-11))
