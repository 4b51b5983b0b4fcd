"""Estimates delta from samples of the privacy loss, and the delta you may report after a check.

A check draws n samples and passes if their mean, the estimated delta, is at most `base_delta`. The
mechanism runs only if the check passes. If the true delta d is above base_delta, the check passes
with probability at most exp(-n KL(base_delta, d)) (Chernoff bound, in Hoeffding's sharp form).
Whether it passes does not depend on the data, so check and run together have a delta of at most

    max over d of d * Pr[the check passes | d].

Check both directions of the neighbouring relation.
"""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import scipy.optimize
from dp_accounting import DpEvent, PrivacyAccountant
from dp_accounting.pld import PLDAccountant

from bevel.accounting.arguments import check_budget
from bevel.checks import finite_number, whole_number
from bevel.errors import FixArgumentsError

DpEventOrAccountant: TypeAlias = DpEvent | PrivacyAccountant
MOST_SAMPLES = 10**20


def get_overall_delta(num_samples: int, base_delta: float) -> float:
    """The delta you may report after a check of `base_delta` with `num_samples` samples."""
    count = whole_number("num_samples", num_samples, 1, 2 * MOST_SAMPLES, "No run has more.")
    _check_delta("base_delta", base_delta)
    # log(d) - n KL(base, d) is largest where n (d - base) = 1 - d.
    excess = (1 - base_delta) / (count + 1)
    rest = (1 - base_delta) * math.log1p(-excess / (1 - base_delta))
    divergence = max(0.0, -base_delta * math.log1p(excess / base_delta) - rest)
    pass_probability = math.exp(-count * divergence)
    return max(base_delta, (base_delta + excess) * pass_probability) * (1 + 1e-9)


def _check_delta(name: str, delta: Any) -> None:
    # Below, ratios of deltas overflow.
    finite_number(name, delta, "well below one over the number of examples", 1e-300, 1)
    check_budget(delta=delta)


def minimum_samples_to_calibrate(base_delta: float, target_delta: float) -> int:
    """The fewest samples with which a check of `base_delta` lets you report `target_delta`."""
    _check_delta("base_delta", base_delta)
    _check_delta("target_delta", target_delta)
    if not base_delta < target_delta:
        raise FixArgumentsError(
            f"base_delta={base_delta} is not below target_delta={target_delta}: pass a smaller "
            "base_delta, because the difference covers checks that pass by chance."
        )
    low, high = 0, 1
    while get_overall_delta(high, base_delta) > target_delta:
        low, high = high, 2 * high
        if high > MOST_SAMPLES:
            raise FixArgumentsError(
                f"base_delta={base_delta} is so close to target_delta={target_delta} that "
                f"{MOST_SAMPLES:.0e} samples cannot tell them apart: pass a smaller base_delta."
            )
    while high - low > 1:
        middle = (low + high) // 2
        fits = get_overall_delta(middle, base_delta) <= target_delta
        low, high = (low, middle) if fits else (middle, high)
    return high


def get_base_delta(num_samples: int, target_delta: float) -> float:
    """The largest `base_delta` to check with `num_samples` in order to report `target_delta`."""
    _check_delta("target_delta", target_delta)
    tiny = 1e-12 * target_delta
    if get_overall_delta(num_samples, tiny) > target_delta:
        raise FixArgumentsError(
            f"num_samples={num_samples} cannot certify target_delta={target_delta}: even a check "
            "with base_delta near 0 passes too often by chance. Use more samples."
        )

    def excess(base: float) -> float:
        return get_overall_delta(num_samples, base) - target_delta

    base_delta = scipy.optimize.brentq(excess, tiny, target_delta, xtol=1e-12 * tiny, rtol=1e-12)
    return base_delta * (1 - 1e-9)


def delta_from_epsilon_and_samples(
    epsilon: float,
    samples: Sequence[float],
    counts: Sequence[float] | None = None,
    other_event: DpEventOrAccountant | None = None,
) -> float:
    """Estimates delta at `epsilon` as the mean of max(0, 1 - exp(epsilon - loss)). Not a bound.

    Args:
      samples: privacy losses, drawn from the first distribution of a pair of neighbours.
      counts: how often each sample was drawn; once by default.
      other_event: an event to compose with, or an accountant that has composed it. The result is
        then the mean of its deltas at `epsilon - loss`.
    """
    losses = np.asarray(samples, float)
    weights = np.ones_like(losses) if counts is None else np.asarray(counts, float)
    if losses.ndim != 1 or not losses.size or losses.shape != weights.shape:
        raise FixArgumentsError(
            f"samples has shape {losses.shape} and counts {weights.shape}: pass a 1-D array of "
            "privacy losses, and as many counts."
        )
    if np.isnan(losses).any() or (weights < 0).any() or not weights.sum() > 0:
        raise FixArgumentsError("samples contains NaN, or counts are negative or all zero.")
    if other_event is None:
        deltas = -np.expm1(np.minimum(epsilon - losses, 0.0))
    else:
        accountant: Any = other_event
        if not isinstance(accountant, PrivacyAccountant):
            accountant = PLDAccountant().compose(accountant)
        order = np.argsort(-losses)  # get_delta takes epsilons in increasing order
        losses, weights = losses[order], weights[order]
        deltas = np.asarray(accountant.get_delta(epsilon - losses))
    return float(np.average(deltas, weights=weights))


def perform_calibration_from_samples(
    epsilon: float,
    delta: float,
    *,
    positive_samples: Sequence[Sequence[float]],
    positive_counts: Sequence[Sequence[float]] | None = None,
    negative_samples: Sequence[Sequence[float]] | None = None,
    negative_counts: Sequence[Sequence[float]] | None = None,
    other_event: DpEventOrAccountant | Sequence[DpEventOrAccountant] | None = None,
) -> tuple[bool, int | float]:
    """Finds the parameter whose estimated deltas come closest to the budget from below.

    Their order does not matter, except that the first of several equal ones is taken.

    Args:
      epsilon, delta: the budget; `delta` is that of the check. To report `target_delta` for one of
        k parameters, pass `get_base_delta(num_samples, target_delta / k)`: each of them may pass by
        chance.
      positive_samples: for each parameter, privacy losses drawn with the record.
      negative_samples: the same without the record. Omit them only if the positive direction is
        known to be the worse one.
      other_event: an event to compose with all parameters, or a list with one for each.

    Returns:
      `(True, index)` of that parameter, or `(False, delta)` with the smallest estimated delta if
      none is within the budget.
    """
    check_budget(epsilon, delta)
    directions: list[tuple[Any, Any]] = [(positive_samples, positive_counts)]
    if negative_samples is not None:
        directions.append((negative_samples, negative_counts))
    number = len(positive_samples)
    others: Any = other_event
    if not isinstance(other_event, Sequence):
        others = [other_event] * number
    lists = [part for pair in directions for part in pair if part is not None]
    if not number or any(len(part) != number for part in [*lists, others]):
        raise FixArgumentsError(
            "pass samples, counts and events for the same number of parameters, at least one."
        )
    estimates = [
        max(
            delta_from_epsilon_and_samples(
                epsilon, losses[index], None if counts is None else counts[index], others[index]
            )
            for losses, counts in directions
        )
        for index in range(number)
    ]
    within = [estimate for estimate in estimates if estimate <= delta]
    return (True, estimates.index(max(within))) if within else (False, min(estimates))
