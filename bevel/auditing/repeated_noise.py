"""Noise that repeats itself within a step: coordinates of the gradient that share their noise.

Shards that draw the noise of their neighbour, or two parameters that draw from one key, have noise
of the right size at every coordinate, so the scores of single canaries look right. But whoever
subtracts two such coordinates has removed the noise.

What is left of the noised sums after the contributions of ordinary examples are subtracted is noise
plus what the canary contributed: nothing, or the bound with either sign. Modulo the bound it is
noise alone. Two canaries whose noise agrees at all steps up to rounding are a pair. If the noise is
independent, m canaries have m (m - 1) / 2 (2 t)^steps pairs on average, where t is the tolerance as
a share of the bound, because noise that is at least as large as the bound is almost uniform modulo
it. More pairs than that show repeated noise. The probability of a false alarm is at most 1e-6.
"""

import numpy as np
from scipy import stats
from scipy.spatial import cKDTree

from bevel.auditing.arguments import Floats

_STEPS = 8  # of a run that are compared: more show nothing new
_TOLERANCE = 1e-5  # of the bound
_ROUNDING = 2.0**-21  # of the largest sum: a few roundings in float32
_FALSE_ALARM = 1e-6
_SMALLEST_NOISE = 0.5  # over the bound: smaller noise is not uniform modulo the bound
_NOT_UNIFORM = 1.02  # the density of such noise modulo the bound, at most


def repeated_noise(rest: Floats, bound: float, noise_stddev: float, rounding: float = 0.0) -> int:
    """The number of pairs of canaries with the same noise, or 0 if chance explains it.

    Args:
      rest: the noised sums without the contributions of ordinary examples, (steps, canaries).
      bound: what one canary contributes.
      noise_stddev: the smallest standard deviation of the noise at a coordinate.
      rounding: the largest absolute value of the sums, of which a share is lost to rounding.
    """
    if noise_stddev < _SMALLEST_NOISE * bound:
        return 0
    tolerance = max(_TOLERANCE, _ROUNDING * rounding / bound)
    points = np.mod(rest[:_STEPS].T / bound, 1.0)
    points[points >= 1] = 0  # a rounding of mod
    pairs = len(
        cKDTree(points, boxsize=1.0).query_pairs(tolerance, p=np.inf, output_type="ndarray")
    )
    canaries, steps = points.shape
    expected = canaries * (canaries - 1) / 2 * (_NOT_UNIFORM**2 * 2 * tolerance) ** steps
    chance = stats.poisson.sf(pairs - 1, expected)
    return pairs if pairs and chance <= _FALSE_ALARM else 0
