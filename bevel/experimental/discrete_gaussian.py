"""Exact samples of the discrete Gaussian on the host, in NumPy.

P[x] is proportional to exp(-x**2 / (2 sigma**2)) over all integers x. The samples come from
rejection (Canonne, Kamath and Steinke 2020, algorithms 2 and 3), with t = floor(sigma) + 1:

    LAPLACE  |y| = j + t k, where j is uniform below t and accepted by a coin exp(-j / t), and k
             counts the successes of a coin exp(-1); a random sign, and a negative zero is rejected
    ACCEPT   y is accepted by a coin exp(-(|y| / sigma - sigma / t)**2 / 2)

A coin exp(-x) compares a uniform number with exp(-x). Their first 52 bits decide almost always,
with a margin for the rounding of floating-point numbers. If they do not, more random bits are drawn
and exp(-x) is computed to more digits, from x as an exact fraction, until they do. So nothing is
rounded: the samples are exact if the bits of `rng` are uniform. Only magnitudes beyond 64 sigma,
whose probability is below 2**-2900, are never drawn.

`bevel.noise_addition.discrete_gaussian_privatizer` adds this noise on devices, from a secret key.
The bits of a NumPy generator can be predicted from its outputs, so do not release sums with its
noise to an adversary.
"""

import decimal
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax
import numpy as np

from bevel.checks import as_float, is_real, shown, whole_number
from bevel.errors import FixArgumentsError

PyTree = Any
BITS = 52
# Relative error of a coin's probability in float64, at most. Its true size is below 1e-12.
MARGIN = 2.0**-36
LARGEST_MULTIPLE = 64  # of sigma
CANDIDATES = 2**20  # in memory at a time


def sample_discrete_gaussian(
    rng: np.random.Generator,
    sigma: float,
    size: int | tuple[int, ...],
    oversample: int | None = None,
    dtype: np.typing.DTypeLike = np.int64,
) -> np.ndarray:
    """Draws independent samples of the discrete Gaussian.

    Args:
      rng: the source of random bits.
      sigma: the scale, at least 0; 0 gives zeros. The standard deviation is slightly smaller if
        sigma is below 1, and equal to sigma for all practical purposes above that.
      size: the number of samples, or a shape.
      oversample: the number of candidates to draw for each missing sample at a time. About half
        of them are accepted. Affects speed only.
      dtype: a signed integer dtype that holds 64 sigma.
    """
    sigma = _checked_sigma(sigma, rng)
    dtype = _checked_dtype(dtype, sigma)
    shape = tuple(
        whole_number("size", n, 0) for n in (size if isinstance(size, tuple) else (size,))
    )
    whole_number("size", math.prod(shape), 0, 2**27, "All samples are held in memory.")
    factor = 2 if oversample is None else whole_number("oversample", oversample)
    samples = np.zeros(shape, dtype)
    flat, filled = samples.reshape(-1), 0
    while filled < flat.size and sigma > 0:
        missing = flat.size - filled
        found = _accepted(rng, sigma, max(1, min(factor * missing, CANDIDATES)))[:missing]
        flat[filled : filled + found.size] = found
        filled += found.size
    return samples


def sample_discrete_gaussian_pytree(
    rng: np.random.Generator,
    sigma: float,
    pytree: PyTree,
    oversample: int | None = None,
    dtype: np.typing.DTypeLike = np.int64,
) -> PyTree:
    """Draws samples in the shapes of a tree of arrays (or shapes), as NumPy arrays."""
    return jax.tree.map(
        lambda leaf: sample_discrete_gaussian(
            rng, sigma, leaf.shape if hasattr(leaf, "shape") else np.shape(leaf), oversample, dtype
        ),
        pytree,
    )


def _checked_sigma(sigma: Any, rng: Any) -> float:
    if not isinstance(rng, np.random.Generator):
        raise FixArgumentsError(
            f"rng is a {type(rng).__name__}: pass np.random.default_rng(...). There is no default, "
            "because noise from a known seed protects nothing."
        )
    if not is_real(sigma) or not 0 <= as_float(sigma) < np.inf:
        raise FixArgumentsError(f"sigma={shown(sigma)}: pass a finite number of at least 0.")
    return float(sigma)


def _checked_dtype(dtype: Any, sigma: float) -> np.dtype:
    try:
        found = np.dtype(dtype)
    except Exception as error:  # NumPy reads attributes and strings of any kind
        raise FixArgumentsError(f"dtype={shown(dtype)}: pass int64 or int32.") from error
    if found.kind != "i":
        raise FixArgumentsError(f"dtype={found}: pass a signed integer dtype, such as int64.")
    if LARGEST_MULTIPLE * (sigma + 1) > np.iinfo(found).max:
        raise FixArgumentsError(
            f"dtype={found} cannot hold {LARGEST_MULTIPLE} times sigma={sigma}: use a wider dtype, "
            "or a smaller sigma."
        )
    return found


def _accepted(rng: np.random.Generator, sigma: float, count: int) -> np.ndarray:
    """Draws `count` candidates from the discrete Laplace, and returns those that are accepted."""
    t = int(sigma) + 1
    j = rng.integers(t, size=count)
    j = j[coins(rng, j / t, lambda i: Fraction(int(j[i]), t))]
    k = _successes(rng, j.size)
    negative = rng.integers(2, size=j.size) == 1
    keep = (k < LARGEST_MULTIPLE) & ~(negative & (j == 0) & (k == 0))
    magnitude, negative = (j + t * k)[keep], negative[keep]
    exact = Fraction(sigma)
    with np.errstate(over="ignore"):  # for a sigma near 0, exp(-inf) is right
        exponents = (magnitude / sigma - sigma / t) ** 2 / 2
    keep = coins(rng, exponents, lambda i: (int(magnitude[i]) / exact - exact / t) ** 2 / 2)
    return np.where(negative, -magnitude, magnitude)[keep]


def _successes(rng: np.random.Generator, count: int) -> np.ndarray:
    """How often a coin exp(-1) succeeds before it fails, for each of `count` samples."""
    successes, active = np.zeros(count, np.int64), np.arange(count)
    while active.size:
        active = active[coins(rng, np.ones(active.size), lambda _: Fraction(1))]
        # Larger counts are rejected, and would overflow.
        active = active[successes[active] < LARGEST_MULTIPLE]
        successes[active] += 1
    return successes


def coins(
    rng: np.random.Generator, exponents: np.ndarray, exact: Callable[[int], Fraction]
) -> np.ndarray:
    """Tosses one coin exp(-x) for each exponent x, which `exact(i)` returns as a fraction."""
    uniform = rng.integers(2**BITS, size=exponents.size)
    scaled = np.exp(-exponents) * 2.0**BITS
    success = uniform + 1 <= scaled * (1 - MARGIN)
    # At least a tiny number, because exp(-x) is not 0 where it underflows.
    failure = uniform >= np.maximum(scaled * (1 + MARGIN), 0.5)
    for i in np.flatnonzero(~(success | failure)):
        success[i] = _coin_of_more_bits(rng, exact(int(i)), int(uniform[i]))
    return success


def _coin_of_more_bits(rng: np.random.Generator, exponent: Fraction, uniform: int) -> bool:
    """Whether a uniform number whose first bits are `uniform` is below exp(-exponent)."""
    if exponent == 0:
        return True
    bits = BITS
    while True:
        uniform, bits = (uniform << 32) | int(rng.integers(2**32)), bits + 32
        low, high = _bounds_of_exp(exponent, bits)
        if uniform + 1 <= low * 2**bits:
            return True
        if uniform >= high * 2**bits:
            return False


def _bounds_of_exp(exponent: Fraction, bits: int) -> tuple[Fraction, Fraction]:
    """Bounds on exp(-exponent) that are less than 2**-bits apart."""
    if exponent > bits:
        return Fraction(0), Fraction(1, 2**bits)
    # The exponent has at most `digits` - 10 digits before the point, and exp is rounded correctly.
    digits = bits // 3 + 20
    context = decimal.Context(prec=digits, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX)
    rounded = context.divide(
        decimal.Decimal(exponent.numerator), decimal.Decimal(exponent.denominator)
    )
    middle = Fraction(context.exp(-rounded))
    error = middle * Fraction(1, 10 ** (digits - 10))
    return middle - error, middle + error
