"""Deltas from samples of privacy losses, and what may be reported after a check by sampling.

A check draws n samples and passes if their mean, the estimated delta, is at most `base_delta`; the
mechanism runs only if it passes. If its true delta is d, a check passes with probability at most
exp(-n KL(base_delta, d)) for d above base_delta (Chernoff, in Hoeffding's sharp form). What passes
is chance that has nothing to do with data, so check and run together have a delta of at most

    max over d of d * Pr[the check passes | d].

For neighbours in both directions, both have to be checked.
"""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import scipy.optimize
from dp_accounting import DpEvent, PrivacyAccountant
from dp_accounting.pld import PLDAccountant

from bevel.accounting.arguments import check_budget
from bevel.checks import whole_number
from bevel.errors import FixArgumentsError

DpEventOrAccountant: TypeAlias = DpEvent | PrivacyAccountant
MOST_SAMPLES = 10**15


def get_overall_delta(num_samples: int, base_delta: float) -> float:
    """The delta that may be reported after a check of `base_delta` with `num_samples`."""
    count = whole_number("num_samples", num_samples)
    check_budget(delta=base_delta)
    # log(d) - n KL(base, d) is largest where n (d - base) = 1 - d.
    above = (1 - base_delta) / (count + 1)
    passes = math.exp(-count * _divergence(base_delta, above))
    return max(base_delta, (base_delta + above) * passes) * (1 + 1e-9)


def _divergence(p: float, above: float) -> float:
    """KL divergence of coins with chances p and p + above, right to the last digits."""
    rest = (1 - p) * math.log1p(-above / (1 - p))
    return max(0.0, -p * math.log1p(above / p) - rest)


def minimum_samples_to_calibrate(base_delta: float, target_delta: float) -> int:
    """The fewest samples after which a check of `base_delta` allows to report `target_delta`."""
    check_budget(delta=base_delta)
    check_budget(delta=target_delta)
    if not base_delta < target_delta:
        raise FixArgumentsError(
            f"base_delta={base_delta} has to be below target_delta={target_delta}: the rest is for "
            "checks that pass by chance."
        )
    low, high = 0, 1
    while get_overall_delta(high, base_delta) > target_delta:
        low, high = high, 2 * high
        if high > MOST_SAMPLES:
            raise FixArgumentsError(
                f"base_delta={base_delta} is so near to target_delta={target_delta} that no "
                "number of samples can tell them apart: give a smaller base_delta."
            )
    while high - low > 1:
        middle = (low + high) // 2
        fits = get_overall_delta(middle, base_delta) <= target_delta
        low, high = (low, middle) if fits else (middle, high)
    return high


def get_base_delta(num_samples: int, target_delta: float) -> float:
    """The largest delta to check with `num_samples` in order to report `target_delta`."""
    check_budget(delta=target_delta)
    tiny = 1e-12 * target_delta
    if get_overall_delta(num_samples, tiny) > target_delta:
        raise FixArgumentsError(
            f"{num_samples} samples cannot show delta={target_delta}: even a check that no sample "
            "may exceed passes too often by chance. Take more."
        )

    def excess(base: float) -> float:
        return get_overall_delta(num_samples, base) - target_delta

    found = scipy.optimize.brentq(excess, tiny, target_delta, xtol=1e-18, rtol=1e-12)
    return found * (1 - 1e-9)


def delta_from_epsilon_and_samples(
    epsilon: float,
    samples: Sequence[float],
    counts: Sequence[float] | None = None,
    other_event: DpEventOrAccountant | None = None,
) -> float:
    """The estimated delta at `epsilon`: the mean of max(0, 1 - exp(epsilon - loss)). No bound.

    Args:
      samples: privacy losses, drawn from the first law of a pair of neighbours.
      counts: how often each sample was drawn; once by default.
      other_event: composed with it, as an event or an accountant that has composed it. The mean is
        then of its deltas at `epsilon - loss`.
    """
    losses = np.asarray(samples, float)
    weights = np.ones_like(losses) if counts is None else np.asarray(counts, float)
    if losses.ndim != 1 or not losses.size or losses.shape != weights.shape:
        raise FixArgumentsError(
            f"samples of shape {losses.shape} with counts of shape {weights.shape}: give one "
            "privacy loss each, and as many counts."
        )
    if np.isnan(losses).any() or (weights < 0).any() or not weights.sum() > 0:
        raise FixArgumentsError("samples hold NaN, or counts are negative or all zero.")
    if other_event is None:
        deltas = -np.expm1(np.minimum(epsilon - losses, 0.0))
    else:
        accountant: Any = other_event
        if not isinstance(accountant, PrivacyAccountant):
            accountant = PLDAccountant().compose(accountant)
        order = np.argsort(-losses)  # it takes epsilons in rising order
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
    """The first parameter whose estimated deltas are within the budget.

    Parameters are tried in the order given, the best one (the least noise) first.

    Args:
      epsilon, delta: the budget; `delta` is that of the check, `get_base_delta(...)`.
      positive_samples: for each parameter, privacy losses with the record there.
      negative_samples: likewise without it. Leave out only if the other direction is the worse.
      other_event: composed with every parameter, or one for each.

    Returns:
      `(True, index)` of that parameter, or `(False, delta)`: the smallest that any has.
    """
    check_budget(epsilon, delta)
    directions: list[tuple[Any, Any]] = [(positive_samples, positive_counts)]
    if negative_samples is not None:
        directions.append((negative_samples, negative_counts))
    number = len(positive_samples)
    others: Any = other_event
    if not isinstance(other_event, list | tuple):
        others = [other_event] * number
    lists = [part for pair in directions for part in pair if part is not None]
    if not number or any(len(part) != number for part in [*lists, others]):
        raise FixArgumentsError("give samples, counts and events for as many parameters each.")
    smallest = math.inf
    for index in range(number):
        found = max(
            delta_from_epsilon_and_samples(
                epsilon, losses[index], None if counts is None else counts[index], others[index]
            )
            for losses, counts in directions
        )
        if found <= delta:
            return True, index
        smallest = min(smallest, found)
    return False, smallest
