"""Sums of geometric sequences that stay accurate as the ratio nears 1.

Plain numbers are computed by NumPy in float64, traced ones by JAX.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bevel.matrix_factorization.optimization import namespace


def geometric_sum(a: Any, r: Any, num: Any = np.inf) -> Any:
    """a + a r + a r^2 + ..., `num` terms: for ratios up to 1, and their derivatives.

    | r, num                   | sum                                              |
    | ------------------------ | ------------------------------------------------ |
    | r = 1                    | a num                                            |
    | r near 1                 | by expm1, so that no digits are lost to 1 - r    |
    | r < 1, num infinite      | a / (1 - r)                                      |
    | r >= 1, num infinite     | infinity                                         |
    """
    xp = namespace(a, r, num)
    a, r, num = xp.broadcast_arrays(*(xp.asarray(x, float) for x in (a, r, num)))
    terms = xp.where(xp.isinf(num), 1.0, num)
    # Quotients are taken where they are used only, so that no derivative is 0 / 0.
    at_one = xp.abs(1 - r) * terms < 1e-5
    series = terms * (1 - (terms - 1) / 2 * (1 - r) * (1 - (terms - 2) / 3 * (1 - r)))
    far = xp.where(r < 0.5, r, 0.25)
    near = xp.where(at_one | (r < 0.5), 0.75, r)
    by_power = (1 - far**terms) / (1 - far)
    by_expm1 = -xp.expm1(terms * xp.log(near)) / (1 - near)
    finite = xp.where(at_one, series, xp.where(r < 0.5, by_power, by_expm1))
    limit = xp.where(r < 1, 1 / xp.where(r < 1, 1 - r, 1.0), xp.inf)
    return a * xp.where(xp.isinf(num), limit, finite)


class _PairSums(NamedTuple):
    """Sums over t < n of 1, s, s' and s s', where s = 1 + ... + theta^(t-1), s' the same of theta'.

    Beside a sum over t < n of one kind, the sum over m = 1, ..., n of its sums over t < m.
    """

    once: tuple[Any, ...]
    twice: tuple[Any, ...]


def pair_sums(theta1: Any, theta2: Any, n: Any) -> _PairSums:
    """The sums for pairs of ratios in [0, 1], broadcast against each other.

    Nothing is subtracted and nothing divided, so every digit is right for every ratio, 1 included.
    A sum of n + m terms is made of sums of n and of m, because s[n + t] = s[n] + theta^n s[t]:
    about log2(n) steps.
    """
    xp = namespace(theta1, theta2, n)
    theta1, theta2 = xp.broadcast_arrays(*(xp.asarray(x, float) for x in (theta1, theta2)))
    zero, one = xp.zeros(theta1.shape), xp.ones(theta1.shape)
    total = _Partial(zero, (zero, zero), (one, one), (zero,) * 4, (zero,) * 4)
    first = (one, zero, zero, zero)
    single = _Partial(one, (one, one), (theta1, theta2), first, first)

    def add_digit(total: _Partial, digit: Any) -> tuple[_Partial, None]:
        total = _joined(total, total)
        longer = _joined(total, single)
        return jax.tree.map(lambda a, b: xp.where(digit, a, b), longer, total), None

    if xp is jnp:
        total, _ = jax.lax.scan(add_digit, total, _binary_digits(n))
    else:
        for digit in _binary_digits(n):
            total, _ = add_digit(total, digit)
    return _PairSums(total.once, total.twice)


class _Partial(NamedTuple):
    """A stretch of terms: how many, s and theta^count at its end, and its sums."""

    count: Any
    s: tuple[Any, Any]
    power: tuple[Any, Any]
    once: tuple[Any, ...]
    twice: tuple[Any, ...]


def _joined(a: _Partial, b: _Partial) -> _Partial:
    """Stretch a, followed by stretch b."""
    (s1, s2), (p1, p2) = a.s, a.power

    def shifted(sums: tuple[Any, ...]) -> tuple[Any, ...]:
        """Sums of b as they are after a."""
        x0, x1, x2, x12 = sums
        both = s1 * s2 * x0 + p1 * s2 * x1 + s1 * p2 * x2 + p1 * p2 * x12
        return x0, s1 * x0 + p1 * x1, s2 * x0 + p2 * x2, both

    def add(*parts: Any) -> tuple[Any, ...]:
        return tuple(sum(x) for x in zip(*parts, strict=True))

    return _Partial(
        a.count + b.count,
        (s1 + p1 * b.s[0], s2 + p2 * b.s[1]),
        (p1 * b.power[0], p2 * b.power[1]),
        add(a.once, shifted(b.once)),
        add(a.twice, tuple(b.count * x for x in a.once), shifted(b.twice)),
    )


def _binary_digits(n: Any) -> Any:
    """Digits of a whole number, the highest first."""
    if isinstance(n, jax.core.Tracer):
        shifts = np.arange(31 if n.dtype.itemsize == 4 else 52, dtype=n.dtype)[::-1]
        return (n >> shifts) % 2 == 1
    return np.array([digit == "1" for digit in f"{int(n):b}"])
