"""Sums of geometric sequences that stay accurate as the ratio approaches 1.

Concrete values are computed by NumPy in float64, traced values by JAX.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bevel.matrix_factorization.optimization import namespace


def geometric_sum(a: Any, r: Any, num: Any = np.inf) -> Any:
    """The sum a + a r + a r^2 + ... of `num` terms, for ratios up to 1. Differentiable.

    | r, num                   | sum                                              |
    | ------------------------ | ------------------------------------------------ |
    | r = 1                    | a num                                            |
    | r near 1                 | uses expm1, to avoid the cancellation in 1 - r   |
    | r < 1, num infinite      | a / (1 - r)                                      |
    | r >= 1, num infinite     | infinity                                         |
    """
    xp = namespace(a, r, num)
    a, r, num = xp.broadcast_arrays(*(xp.asarray(x, float) for x in (a, r, num)))
    terms = xp.where(xp.isinf(num), 1.0, num)
    # Each branch gets safe values where it is not used, so that no derivative is 0 / 0.
    at_one = xp.abs(1 - r) * terms < 1e-5
    series = terms * (1 - (terms - 1) / 2 * (1 - r) * (1 - (terms - 2) / 3 * (1 - r)))
    far = xp.where(r < 0.5, r, 0.25)
    near = xp.where(at_one | (r < 0.5), 0.75, r)
    by_power = (1 - far**terms) / (1 - far)
    by_expm1 = -xp.expm1(terms * xp.log(near)) / (1 - near)
    finite = xp.where(at_one, series, xp.where(r < 0.5, by_power, by_expm1))
    limit = xp.where(r < 1, 1 / xp.where(r < 1, 1 - r, 1.0), xp.inf)
    return a * xp.where(xp.isinf(num), limit, finite)


class _GeometricPairSums(NamedTuple):
    """Sums of 1, s, s' and s s', where s[t] = 1 + ... + theta^(t-1), and s' the same for theta'."""

    once: tuple[Any, ...]  # sums over t < n
    twice: tuple[Any, ...]  # sums over m = 1, ..., n of the sums over t < m


def pair_sums(theta1: Any, theta2: Any, n: Any) -> _GeometricPairSums:
    """Computes the sums for pairs of ratios in [0, 1], which are broadcast against each other.

    There are no subtractions or divisions, so the result is accurate for every ratio including 1.
    A sum of n + m terms is composed of sums of n and of m terms, because
    s[n + t] = s[n] + theta^n s[t]. This takes about log2(n) steps.
    """
    xp = namespace(theta1, theta2, n)
    theta1, theta2 = xp.broadcast_arrays(*(xp.asarray(x, float) for x in (theta1, theta2)))
    zero, one = xp.zeros(theta1.shape), xp.ones(theta1.shape)
    total = _Segment(zero, (zero, zero), (one, one), (zero,) * 4, (zero,) * 4)
    first = (one, zero, zero, zero)
    single = _Segment(one, (one, one), (theta1, theta2), first, first)

    def add_digit(total: _Segment, digit: Any) -> tuple[_Segment, None]:
        total = _concatenate(total, total)
        longer = _concatenate(total, single)
        return jax.tree.map(lambda a, b: xp.where(digit, a, b), longer, total), None

    if xp is jnp:
        total, _ = jax.lax.scan(add_digit, total, _binary_digits(n))
    else:
        for digit in _binary_digits(n):
            total, _ = add_digit(total, digit)
    return _GeometricPairSums(total.once, total.twice)


class _Segment(NamedTuple):
    """Consecutive terms: their count, s and theta^count at the end, and the sums."""

    count: Any
    s: tuple[Any, Any]
    power: tuple[Any, Any]
    once: tuple[Any, ...]
    twice: tuple[Any, ...]


def _concatenate(a: _Segment, b: _Segment) -> _Segment:
    """Segment a, followed by segment b."""
    (s1, s2), (p1, p2) = a.s, a.power

    def shifted(sums: tuple[Any, ...]) -> tuple[Any, ...]:
        """The sums of b when b starts at the end of a."""
        x0, x1, x2, x12 = sums
        both = s1 * s2 * x0 + p1 * s2 * x1 + s1 * p2 * x2 + p1 * p2 * x12
        return x0, s1 * x0 + p1 * x1, s2 * x0 + p2 * x2, both

    def add(*parts: Any) -> tuple[Any, ...]:
        return tuple(sum(x) for x in zip(*parts, strict=True))

    return _Segment(
        a.count + b.count,
        (s1 + p1 * b.s[0], s2 + p2 * b.s[1]),
        (p1 * b.power[0], p2 * b.power[1]),
        add(a.once, shifted(b.once)),
        add(a.twice, tuple(b.count * x for x in a.once), shifted(b.twice)),
    )


def _binary_digits(n: Any) -> Any:
    """The binary digits of a nonnegative integer, most significant first."""
    if isinstance(n, jax.core.Tracer):
        shifts = np.arange(31 if n.dtype.itemsize == 4 else 52, dtype=n.dtype)[::-1]
        return (n >> shifts) % 2 == 1
    return np.array([digit == "1" for digit in f"{int(n):b}"])
