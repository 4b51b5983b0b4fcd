"""Bounds the best of a random number of runs, of which only the best is released.

A mechanism is run K times, independently, on the same data. K is random and secret, and does not
depend on the data. The output with the best score is released, and nothing else (Papernot and
Steinke 2022, arXiv:2110.03620). dp-accounting has the event and its Rényi divergence. This module
adds the privacy loss distribution, which costs less and composes with all other events.

Let f be the probability generating function of K. For neighbouring data, let P and Q be the laws of
one run, and write P> for the probability of a run that ranks above y. Runs are ranked by score, and
equal scores by a coin. If p and q are the densities of P and Q, the released output has the
densities

    a(y) = p(y) f'(1 - P>(y))        b(y) = q(y) f'(1 - Q>(y)).

With x = P>(y) and g(x) = min over t of (e^t x + delta_QP(t)), the definition of delta_QP gives
Q>(y) <= g(x). Because f' increases, for every epsilon

    a(y) - e^epsilon b(y) <= p(y) (f'(1 - x) - e^epsilon f'(1 - g(x)) q(y) / p(y))
                          <= p(y) Psi(e^epsilon q(y) / p(y)),

where Psi(u) = max(0, max over x of f'(1 - x) - f'(1 - g(x)) u), whatever the scores are. Psi is
convex and falls from E[K] to 0, so it is at most a sum of c_j max(0, 1 - u / u_j) with c_j >= 0.
Integrating,

    delta_AB(epsilon) <= sum_j c_j delta_PQ(epsilon - log u_j),      sum_j c_j = E[K].

If K can be 0, as a Poisson number can, "no run" is one more outcome, with probability f(0) for all
data. It adds f(0) max(0, 1 - e^epsilon), which is 0 unless epsilon is negative.

Putting all of E[K] on the largest u_j gives the bound of Koskela, Redberg and Wang 2024
(arXiv:2402.06701, for truncated negative binomial K); this sum is never above it. The steps below
only ever round up.
"""

import functools
import math
import sys

import numpy as np
import scipy.optimize
from dp_accounting.pld.pld_pmf import PLDPmf, create_pmf_pessimistic_connect_dots
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

LINES = 20_000  # values of x at which Psi is bounded
POINTS = 16_000  # epsilons at which delta is bounded
LARGEST_LOSS = 300.0  # larger losses count as infinite; exp(loss) must not overflow
# Beyond these, nothing is claimed: the best of so many runs is hardly private, whatever one run is.
MOST_EXPECTED, LARGEST_SHIFT = 1e9, 600.0
# For larger shapes, gamma is so close to 1 that rounding it would change the mean.
LARGEST_SHAPE = 1e6


@functools.lru_cache(maxsize=256)
def halting_probability(mean: float, shape: float) -> float:
    """The parameter gamma of a truncated negative binomial distribution with this mean."""
    if shape == 1 or mean == 1:
        return 1 / mean

    def excess(log_gamma: float) -> float:
        return math.log(_mean_of(log_gamma, shape) / mean)

    least, most = math.log(1e-15), -sys.float_info.epsilon
    if excess(most) >= 0:
        return math.exp(most)  # the mean is 1, up to rounding
    return math.exp(scipy.optimize.brentq(excess, least, most, xtol=1e-300, rtol=1e-14))


def _mean_of(log_gamma: float, shape: float) -> float:
    # 1 / gamma - 1 itself has no correct digit left if gamma is close to 1.
    more = math.expm1(-log_gamma)
    return more / -log_gamma if shape == 0 else shape * more / -math.expm1(shape * log_gamma)


def selected(
    one: PrivacyLossDistribution, mean: float, shape: float, interval: float
) -> PrivacyLossDistribution | None:
    """Bounds the privacy losses of the best of K runs from those of `one` run.

    Returns None, which claims nothing, if the mean or the shape is too large.

    Args:
      mean, shape: the distribution of K, as in dp-accounting's `RepeatAndSelectDpEvent`.
      interval: the interval of the grid that losses are rounded to.
    """
    if mean == 1 and shape != math.inf:
        return one  # K is always 1
    remove, add = one._pmf_remove, one._pmf_add
    if LARGEST_SHAPE < shape < math.inf:
        return None
    symmetric = add is remove
    largest = max(_largest_loss(remove), _largest_loss(add))
    weights, xs = _weights(min(mean, MOST_EXPECTED), shape)
    if mean > MOST_EXPECTED or not weights[-1] > weights[0] * math.exp(-LARGEST_SHIFT):
        return None
    lines = [_lines(weights, xs, pmf, largest) for pmf in ((add,) if symmetric else (add, remove))]
    top = largest + max(math.log(float(np.max(alphas / betas))) for alphas, betas in lines)
    top = min(top, LARGEST_LOSS)
    step = interval * max(1, math.ceil(2 * top / POINTS / interval))
    count = math.ceil(top / step)
    epsilons = np.arange(-count, count + 1) * step
    no_run = (math.exp(-mean) if shape == math.inf else 0.0) * np.maximum(0, -np.expm1(epsilons))
    deltas = [
        np.maximum(  # a Poisson number may be 0, but the price of a run is never left out
            _delta(pmf, *_combination(*found, step), step, count) + no_run,
            _delta_at(pmf, epsilons),
        )
        for pmf, found in zip((remove, add), lines, strict=False)
    ]
    return PrivacyLossDistribution(
        *(
            _pmf(ours, theirs, step, interval)
            for ours, theirs in zip(deltas, deltas[::-1], strict=True)
        )
    )


def _largest_loss(pmf: PLDPmf) -> float:
    dense = pmf.to_dense_pmf()
    ends = (dense._lower_loss, dense._lower_loss + dense.size)
    return min(max(map(abs, ends)) * dense._discretization + 1.0, LARGEST_LOSS)


def _weights(mean: float, shape: float) -> tuple[np.ndarray, np.ndarray]:
    """Values of x from 0 to 1, and f'(1 - x) there, which falls by equal factors."""
    if shape == math.inf:
        xs = np.linspace(0, 1, LINES)
        return mean * np.exp(-mean * xs), xs
    gamma = halting_probability(mean, shape)
    grown = gamma ** -np.linspace(0, 1, LINES)  # from 1 to 1 / gamma
    return mean * grown ** -(1 + shape), np.clip(gamma * (grown - 1) / (1 - gamma), 0, 1)


def _lines(
    weights: np.ndarray, xs: np.ndarray, pmf: PLDPmf, largest: float
) -> tuple[np.ndarray, np.ndarray]:
    """Lines alpha - beta u whose maximum is at least Psi. `pmf` is that of Q against P.

    Between two values of x, f'(1 - x) is at most its value at the lower one, and f'(1 - g(x)) at
    least its value at the upper one.
    """
    ts = np.linspace(-largest, largest, 4001)
    # Lines e^t x + delta(t), of which g is the minimum: of the hull, only the vertices matter.
    slopes, starts = np.exp(ts), _delta_at(pmf, ts)
    keep = len(ts) - 1 - _upper_hull(-slopes[::-1], -starts[::-1])[::-1]
    slopes, starts = slopes[keep], starts[keep]
    breaks = np.diff(starts) / -np.diff(slopes)  # falling; line k is least between breaks k - 1, k
    chosen = np.searchsorted(-breaks, -xs)
    g = np.minimum(1.0, slopes[chosen] * xs + starts[chosen])
    g = np.maximum.accumulate(np.maximum(g, 0.0))
    below = np.minimum(np.searchsorted(xs, g), len(xs) - 1)
    return weights[:-1], weights[below][1:]


def _combination(alphas: np.ndarray, betas: np.ndarray, step: float) -> tuple[int, np.ndarray]:
    """The c_j at log u_j = first * step, (first + 1) * step, ...: returns first, and the c_j."""
    keep = _upper_hull(-betas, alphas)
    alphas, betas = alphas[keep], betas[keep]
    last = math.ceil(math.log(float(np.max(alphas / betas))) / step)
    first = min(-1, math.floor(-3 / step))
    u = np.exp(step * np.arange(first, last + 1))
    breaks = np.diff(alphas) / np.diff(betas)  # rising; line k is largest between breaks k - 1, k
    chosen = np.searchsorted(breaks, u)
    values = np.maximum(0.0, alphas[chosen] - betas[chosen] * u)
    values[-1] = 0.0
    ends, heights = np.append(0.0, u), np.append(alphas[0], values)
    slopes = np.append(np.diff(heights) / np.diff(ends), 0.0)
    return first, np.maximum(0.0, np.diff(slopes)) * u


def _delta(pmf: PLDPmf, first: int, c: np.ndarray, step: float, count: int) -> np.ndarray:
    """sum_j c_j delta(epsilon - log u_j) at epsilon = -count * step, ..., count * step."""
    low, high = -count - first - len(c) + 1, count - first
    return np.convolve(_delta_at(pmf, np.arange(low, high + 1) * step), c, mode="valid")


def _delta_at(pmf: PLDPmf, epsilons: np.ndarray) -> np.ndarray:
    """Delta at ascending epsilons. It never rises, up to rounding, which is removed upwards.

    dp-accounting's own function takes one step of Python for each loss.
    """
    dense = pmf.to_dense_pmf()
    losses = (np.arange(dense.size) + dense._lower_loss) * dense._discretization
    above, discounted = (
        np.append(np.cumsum(masses[::-1])[::-1], 0.0)
        for masses in (dense._probs, dense._probs * np.exp(np.minimum(-losses, 700.0)))
    )
    first = np.searchsorted(losses, epsilons, side="right")
    found = dense._infinity_mass + above[first] - np.exp(epsilons) * discounted[first]
    return np.clip(np.maximum.accumulate(found[::-1])[::-1], 0.0, 1.0)


def _pmf(ours: np.ndarray, theirs: np.ndarray, step: float, interval: float) -> PLDPmf:
    """The distribution with deltas below `ours` that is convex in exp(epsilon), as deltas are.

    `theirs` are the deltas of the opposite direction, which also bound those below epsilon = 0:
    delta_AB(-epsilon) = 1 - e^-epsilon + e^-epsilon delta_BA(epsilon).
    """
    count = len(ours) // 2
    number = np.arange(-count, count + 1)
    xs = np.exp(number * step)
    opposite = 1 - xs[: count + 1] * (1 - theirs[::-1][: count + 1])
    bound = np.minimum(1.0, ours)
    bound[: count + 1] = np.minimum(bound[: count + 1], opposite)
    bound = np.maximum.accumulate(bound[::-1])[::-1]
    keep = _upper_hull(np.append(0.0, xs), -np.append(1.0, bound))[1:] - 1
    ratio = round(step / interval)
    return create_pmf_pessimistic_connect_dots(interval, number[keep] * ratio, bound[keep])


def _upper_hull(xs: np.ndarray, ys: np.ndarray) -> np.ndarray:
    """The numbers of the points on the upper convex hull. `xs` must not fall."""
    hull: list[int] = []
    x, y = xs.tolist(), ys.tolist()
    for k in range(len(x)):
        while hull and x[hull[-1]] >= x[k] and y[hull[-1]] <= y[k]:
            hull.pop()
        if hull and x[hull[-1]] >= x[k]:
            continue
        while len(hull) > 1:
            i, j = hull[-2], hull[-1]
            if (y[j] - y[i]) * (x[k] - x[j]) > (y[k] - y[j]) * (x[j] - x[i]):
                break
            hull.pop()
        hull.append(k)
    return np.array(hull)
