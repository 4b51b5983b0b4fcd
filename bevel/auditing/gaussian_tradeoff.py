"""Gaussian differential privacy: a lower bound on mu, and the epsilon that belongs to a mu.

A mechanism is mu-GDP if telling two neighbours apart is no easier than telling N(0, 1) from
N(mu, 1): TPR <= Phi(Phi^-1(FPR) + mu) for every test (Dong, Roth and Su, 2019).
"""

import math

import numpy as np
from scipy import special

from bevel.auditing.clopper_pearson import uniform_rate_bounds
from bevel.auditing.score_cuts import ScoreCuts


def mu_lower_bound(cuts: ScoreCuts, significance: float) -> float:
    """The largest mu = Phi^-1(TPR) - Phi^-1(FPR) over all thresholds, from bounds on both rates.

    The bounds hold at all thresholds at once with probability 1 - significance, and then mu is
    at least this (Nasr et al., 2023, "Tight Auditing of Differentially Private Machine Learning").
    """
    tpr, fpr = uniform_rate_bounds(cuts, significance)
    # Never NaN: the lower bound is below 1, and the upper bound above 0.
    return max(0.0, float(np.max(special.ndtri(tpr) - special.ndtri(fpr))))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The exact delta of a mu-GDP mechanism (Balle and Wang, 2018, Theorem 8)."""
    above, below = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    return float(special.ndtr(above) - math.exp(epsilon + special.log_ndtr(below)))


def gaussian_epsilon(mu: float, delta: float, tolerance: float) -> float:
    """The epsilon of a mu-GDP mechanism at delta, at most `tolerance` too low, never too high.

    It is inf for delta = 0, at which a Gaussian mechanism has no finite epsilon.
    """
    if mu == 0 or delta == 1 or gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    if delta == 0:
        return math.inf
    low, high = 0.0, 1.0
    while gaussian_delta(mu, high) > delta:
        low, high = high, 2 * high
    while high - low > tolerance:
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if gaussian_delta(mu, middle) > delta else (low, middle)
    return low
