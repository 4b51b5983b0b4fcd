"""The slow truth of private selection: the law of what is released, summed over numbers of runs."""

import math

import numpy as np
import scipy.stats


def law_of_runs(mean, shape, most=5_000):
    """P(K = k) for k = 0, 1, ..., by the definitions in arXiv:2110.03620; gamma by bisection."""
    k = np.arange(most)
    if math.isinf(shape):
        return _until_negligible(scipy.stats.poisson.pmf(k, mean))
    low, high = 1e-9, 1 - 1e-9
    for _ in range(60):
        gamma = math.sqrt(low * high)
        law = _truncated_negative_binomial(gamma, shape, k)
        low, high = (gamma, high) if law @ k > mean else (low, gamma)
    return _until_negligible(law)


def _until_negligible(law):
    return law[: np.flatnonzero(law > 1e-17)[-1] + 1]


def _truncated_negative_binomial(gamma, shape, k):
    if shape == 0:
        law = (1 - gamma) ** k / (np.maximum(k, 1) * math.log(1 / gamma))
    else:
        ratios = np.append(1.0, np.cumprod((k[:-1] + shape) / (k[:-1] + 1)))
        law = (1 - gamma) ** k * ratios / (gamma**-shape - 1)
    law[0] = 0.0
    return law


def released(one, law):
    """The law of the best outcome. `one` has the law of one run, in the order of the scores.

    The last axis is that of the outcomes. No run at all is an outcome of its own, the first.
    """
    at_most = np.minimum(1.0, np.cumsum(one, axis=-1))
    below = np.concatenate([np.zeros_like(at_most[..., :1]), at_most], axis=-1)
    best = np.zeros_like(below)
    for value in law[::-1]:  # the generating function, by Horner's rule
        best = best * below + value
    return np.concatenate([best[..., :1], np.diff(best, axis=-1)], axis=-1)


def delta(epsilon, p, q):
    return np.maximum(p - np.exp(epsilon) * q, 0).sum(axis=-1)


def worst_order(loss, high, low):
    """Outcomes so ranked that those of high loss come just below the lowest losses.

    Args:
      high: the loss from which an outcome is among the high ones.
      low: the loss up to which an outcome is at the top.
    """
    rank = np.where(loss <= low, 2.0, np.where(loss >= high, 1.0, 0.0))
    return np.lexsort((-loss, rank))
