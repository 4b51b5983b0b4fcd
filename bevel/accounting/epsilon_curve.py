"""Epsilon of a growing composition: each further step costs a sum, not a new composition.

A run charges one event again and again, and asks for epsilon at every release. `composed_epsilon`
splits a composition in two: most of it, which is the same for many releases, and a few steps. With
P1 and P2 the distributions of the privacy losses of the two parts, on one grid,

    delta(epsilon) = P2(infinity) + sum over x of P2(x) H1(epsilon - x)
    H1(y)          = P1(infinity) + sum over x > y of P1(x) (1 - exp(y - x))

is the delta of the composition (`get_delta_for_epsilon_for_composed_pld` of dp-accounting, as array
operations). H1 is kept for all y of the grid, so a value of delta is one inner product. With a
stride of about the square root of the number of releases, n releases take about 2 sqrt(n) Fourier
transforms instead of n.

Formal guarantee: the result is never below the epsilon of the composition as a whole, and at most
`TOLERANCE` above it. Both are the same sum, but Fourier transforms round differently. Delta is
lowered by several times the largest difference that was measured, and if that would change epsilon
by more than the tolerance, the result is None.

One Gaussian needs no sum. Its distribution has the true deltas at the points of the grid, and delta
is linear in exp(epsilon) in between (Doroshenko et al. 2022, connect-the-dots).
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import dp_accounting
import numpy as np
from dp_accounting import DpEvent, NeighboringRelation, NoOpDpEvent
from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss

from bevel.accounting.loss_distributions import (
    CachedPLDAccountant,
    Counts,
    of_single_event,
)

# The most that an epsilon of this module exceeds the epsilon of the composition.
TOLERANCE = 1e-4
# Results are rounded up to this, so that they do not depend on the last bits of sums.
UNIT = 2.0**-20
# Delta is lowered by this fraction of itself, by this probability, and by this much for each step.
# Measured differences of compositions are below 5e-13 at 3,300 steps and 8e-13 at 100,000.
RELATIVE_MARGIN, MARGIN, MARGIN_OF_STEP = 1e-6, 2e-12, 2e-17
# For one Gaussian, whose tails of 1e-15 are cut once.
MARGIN_OF_GAUSSIAN = 1e-14
# A stride should have at most this many different remainders. Each takes a megabyte or two.
MOST_REMAINDERS = 32
# exp(-loss) must not overflow.
LARGEST_LOSS = 600.0


def composed_epsilon(
    fixed: DpEvent,
    event: DpEvent,
    count: int,
    delta: float,
    relation: NeighboringRelation,
    interval: float,
    stride: int,
) -> float | None:
    """Returns the epsilon of `fixed` and `count` times `event`, or None if no bound is close.

    Args:
      interval: the rounding of privacy losses.
      stride: the composition is split after the last multiple of this. It affects the time only.
    """
    most, few = count - count % stride, count % stride
    # Without a kept step, the part is that of any event.
    kept = kept_steps(fixed, event if most else NoOpDpEvent(), most, relation, interval)
    added = added_steps(event, few, relation, interval)
    if kept is None or added is None:
        return None
    margin = MARGIN + count * MARGIN_OF_STEP
    bounds = [
        _bounds(part.delta_with(more), delta, margin, interval, part)
        for part, more in zip(kept, added, strict=True)
    ]
    return _within_tolerance(bounds)


def gaussian_epsilon(
    noise: float, delta: float, relation: NeighboringRelation, interval: float
) -> float | None:
    """Returns the epsilon of one Gaussian mechanism, rounded as its distribution is."""
    noise = noise / 2 if relation is NeighboringRelation.REPLACE_ONE else noise
    loss = GaussianPrivacyLoss(noise)
    near = _SearchStart(int(dp_accounting.get_epsilon_gaussian(noise, delta) / interval))

    def delta_at(k: int) -> float:
        return float(loss.get_delta_for_epsilon(k * interval))

    if near.k * interval > LARGEST_LOSS:
        return None
    return _within_tolerance([_bounds(delta_at, delta, MARGIN_OF_GAUSSIAN, interval, near)])


def only_gaussian(counts: Counts) -> float | None:
    """The noise multiplier of the composition if it is one Gaussian mechanism, or None."""
    (event,) = counts if len(counts) == 1 else (None,)
    return event.noise_multiplier if isinstance(event, dp_accounting.GaussianDpEvent) else None


DeltaAt = Callable[[int], float]  # of an epsilon, in intervals


class _SearchStart:
    """Where the next search begins. It affects the time only."""

    def __init__(self, k: int = 0) -> None:
        self.k = k


def _bounds(
    delta_at: DeltaAt, delta: float, margin: float, interval: float, near: _SearchStart
) -> tuple[float, float]:
    """Bounds on the epsilon of one direction, which rounding cannot exceed."""
    margin += delta * RELATIVE_MARGIN
    if delta <= margin:
        return 0.0, math.inf
    # Parts are cached, so another thread may change `near` meanwhile.
    k = near.k = _crossing(delta_at, delta - margin, near.k)
    upper = _between(delta_at, k, delta - margin, interval)
    k = _crossing(delta_at, delta + margin, k)
    return _between(delta_at, k, delta + margin, interval), upper


def _within_tolerance(bounds: Sequence[tuple[float, float]]) -> float | None:
    """The larger upper bound of both directions, or None if it may be far above the epsilon."""
    lower, upper = (max(each) for each in zip(*bounds, strict=True))
    upper = math.ceil(upper / UNIT) * UNIT if math.isfinite(upper) else upper
    return upper if upper - lower <= TOLERANCE else None


def _between(delta_at: DeltaAt, k: int, target: float, interval: float) -> float:
    """The epsilon with a delta of `target` in the interval that ends at `k`."""
    if k == 0:
        return 0.0
    if k * interval > LARGEST_LOSS:
        return math.inf
    below, above = delta_at(k), delta_at(k - 1)
    part = (above - target) / (above - below)  # delta is linear in exp(epsilon)
    return (k - 1) * interval + math.log1p(part * math.expm1(interval))


def _crossing(delta_at: DeltaAt, target: float, near: int) -> int:
    """The least k >= 0 with a delta of at most `target`, or one above 2^40."""
    k, stride = near, 1
    if delta_at(k) <= target:
        low, high = k - 1, k
        while low >= 0 and delta_at(low) <= target:
            low, high, stride = low - 2 * stride, low, 2 * stride
        low = max(low, -1)
    else:
        low, high = k, k + 1
        while delta_at(high) > target:
            low, high, stride = high, high + 2 * stride, 2 * stride
            if low > 1 << 40:
                return low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if delta_at(middle) <= target else (middle, high)
    return high


class _LossesOfPart(_SearchStart):
    """The privacy losses of one part of a composition, in one direction."""

    def __init__(self, pmf: Any) -> None:
        super().__init__()
        dense = pmf.to_dense_pmf()
        self.first, self.infinite = dense._lower_loss, dense._infinity_mass
        self.probabilities = np.asarray(dense._probs)
        self.reversed = self.probabilities[::-1]
        self.stop = self.first + len(self.probabilities)  # after the largest loss, in intervals
        self._interval = dense._discretization

    @functools.cached_property
    def deltas(self) -> np.ndarray:
        """Delta at the losses `first`, ..., `stop - 1`."""
        losses = np.arange(self.first, self.stop) * self._interval
        above = np.cumsum(self.reversed)[::-1] - self.probabilities
        weighted = self.probabilities * np.exp(-losses)
        below = np.cumsum(weighted[::-1])[::-1] - weighted
        self._totals = (float(np.sum(self.probabilities)), float(np.sum(weighted)))
        return self.infinite + np.maximum(above - np.exp(losses) * below, 0.0)

    def between(self, low: int, high: int) -> np.ndarray:
        """Delta at the losses `low`, ..., `high - 1`, which may lie outside of the distribution."""
        deltas = self.deltas
        if low >= self.first and high <= self.stop:
            return deltas[low - self.first : high - self.first]
        mass, weighted = self._totals
        under = np.arange(low, min(high, self.first)) * self._interval
        inside = deltas[max(low - self.first, 0) : max(high - self.first, 0)]
        over = np.full(max(0, high - max(low, self.stop)), self.infinite)
        return np.concatenate(
            [self.infinite + np.maximum(mass - np.exp(under) * weighted, 0.0), inside, over]
        )

    def delta_with(self, other: "_LossesOfPart | None") -> DeltaAt:
        """Delta of the composition with another part."""

        def alone(k: int) -> float:
            return float(self.between(k, k + 1)[0])

        def composed(k: int) -> float:
            assert other is not None
            deltas = self.between(k - other.stop + 1, k - other.first + 1)
            # Not a BLAS product, whose threads would compete with those of the steps.
            return float(other.infinite + np.einsum("i,i->", other.reversed, deltas))

        return alone if other is None else composed


@functools.lru_cache(maxsize=4)  # a few megabytes each
def kept_steps(
    fixed: DpEvent, event: DpEvent, count: int, relation: NeighboringRelation, interval: float
) -> tuple[_LossesOfPart, ...] | None:
    repeated = dp_accounting.SelfComposedDpEvent(event, count) if count else None
    parts = [part for part in (fixed, repeated) if part is not None]
    accountant = CachedPLDAccountant(relation, interval)
    accountant.compose(dp_accounting.ComposedDpEvent(parts))
    return _parts(accountant, interval)


@functools.lru_cache(maxsize=2 * MOST_REMAINDERS)
def added_steps(
    event: DpEvent, count: int, relation: NeighboringRelation, interval: float
) -> tuple[_LossesOfPart | None, ...] | None:
    if count == 0:
        return (None, None)
    single = of_single_event(event, relation, interval)
    made = CachedPLDAccountant(relation, interval)
    made._pld = single._pld.self_compose(count) if count > 1 else single._pld
    return _parts(made, interval)


def _parts(accountant: CachedPLDAccountant, interval: float) -> tuple[_LossesOfPart, ...] | None:
    """Both directions of a distribution. None if it is not private, or has very large losses."""
    if accountant._contains_non_dp_event:
        return None
    pld = accountant._pld
    parts = tuple(_LossesOfPart(pmf) for pmf in (pld._pmf_remove, pld._pmf_add))
    largest = max(max(abs(part.first), abs(part.stop)) for part in parts)
    return parts if largest * interval < LARGEST_LOSS else None
