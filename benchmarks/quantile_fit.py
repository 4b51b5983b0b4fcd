"""Fits the polynomials of `bevel/noise_addition/normal.py` again, and compares the two.

    python benchmarks/quantile_fit.py

For a normal of absolute value z, let `tail` be the probability of values above z, and let `within =
1 - 2 tail` be that of values closer to zero. z / within is a smooth function of w = -log(4 tail (1
- tail)), the variable of M. Giles, "Approximating the erfinv function" (2012). It loses no
precision at either end: near zero it tends to a constant, and far out w is known as accurately as
the tail. Two polynomials suffice: one in w up to w = 5, and above that one in 1 / sqrt(w), which
approximates the quotient divided by sqrt(w). The fits are minimax in the relative error, by least
squares with weights that move to where the error is largest. The script needs numpy and scipy.
"""

import sys
from pathlib import Path

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial
from numpy.polynomial.chebyshev import chebvander
from scipy.special import erfinv, ndtri

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bevel.noise_addition.normal import FAR, FAR_MIDDLE, NEAR, NEAR_MIDDLE, SPLIT

DEGREE = 9
LARGEST = 44.0  # the smallest tail of 64 bits, 2**-65, has w = 43.7
POINTS, ROUNDS = 6000, 400


def quotient(w: np.ndarray) -> np.ndarray:
    """z / within in float64, computed from whichever of `within` and `tail` is accurate."""
    within = np.sqrt(-np.expm1(-w))
    tail = np.exp(-w) / (2 * (1 + within))
    return np.where(within < 0.5, np.sqrt(2) * erfinv(within), -ndtri(tail)) / within


def fitted(x: np.ndarray, y: np.ndarray, middle: float) -> tuple[list[float], float]:
    """Coefficients in powers of x - middle, highest first, and the largest relative error."""
    low, high = x.min(), x.max()
    terms = chebvander((2 * x - low - high) / (high - low), DEGREE)
    weights, least = np.ones_like(y), np.inf
    for _ in range(ROUNDS):
        found = np.linalg.lstsq(terms * (weights / y)[:, None], weights, rcond=None)[0]
        error = np.abs(terms @ found / y - 1)
        if error.max() < least:
            least, best = error.max(), found
        weights *= (error / error.max()) ** 0.2 + 1e-9
        weights /= weights.max()
    powers = Chebyshev(best, domain=[low, high]).convert(kind=Polynomial)
    return powers(Polynomial([middle, 1.0])).coef[::-1].tolist(), least


def between(low: float, high: float) -> np.ndarray:
    """Chebyshev points, which are closer together at the ends."""
    points = np.cos(np.pi * (np.arange(POINTS) + 0.5) / POINTS)
    return (low + high) / 2 + (high - low) / 2 * points


def main() -> int:
    w = between(0, float(SPLIT))
    near = fitted(w, quotient(w), float(NEAR_MIDDLE))
    root = between(LARGEST**-0.5, float(SPLIT) ** -0.5)
    far = fitted(root, quotient(root**-2) * root, float(FAR_MIDDLE))
    for name, used, (coefficients, error) in (("NEAR", NEAR, near), ("FAR", FAR, far)):
        print(f"{name} = {[float(f'{c:.9g}') for c in coefficients]}")
        print(f"  relative error in exact arithmetic: {error:.1e}")
        print(f"  difference of those in use: {np.max(np.abs(used / coefficients - 1)):.1e}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
