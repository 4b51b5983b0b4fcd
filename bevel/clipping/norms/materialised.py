"""Norms of materialised gradients, one per example. They are correct for any program."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bevel import precision
from bevel.clipping.norms.registry import MeasuredNorm, Norm
from bevel.clipping.norms.scaling import SMALLEST_SQUARE, root, scale_back, scale_to_one
from bevel.clipping.norms.unfinished import UnfinishedNorm
from bevel.sharding.types import on_one_device

# Sums of up to this many squares are not split: their rounding error is small enough.
ONE_STAGE = 4096
# In longer sums, at most this many numbers are added in a row.
CHUNK = 512
# Sums of squares within these bounds neither overflow nor underflow in float32.
SAFE_SQUARES = (2.0**-80, 2.0**100)


@jax.jit  # traced once for all gradients of one shape
def materialised_norm(gradient: jax.Array) -> Norm:
    """L2 norms of `gradient[i]` for a stack of gradients (B, ...).

    Squares are computed after scaling, so they neither overflow nor underflow. They are summed in
    stages, because one long float32 sum can stagnate: 2**25 ones summed in a row give 2**24.
    """
    if gradient.size == 0:
        zeros = jnp.zeros(gradient.shape[:1], precision.accumulation_dtype(gradient.dtype))
        return Norm(zeros, zeros)
    scaled, exponent = scale_to_one(gradient)
    (estimate, upper), _ = quick_norm(scaled)
    return Norm(scale_back(estimate, exponent), scale_back(upper, exponent))


@jax.jit
def quick_norm(gradient: jax.Array) -> MeasuredNorm:
    """As `materialised_norm` without scaling: one pass, in which squares may leave the range."""
    return unfinished_norm(gradient).finished()


def unfinished_norm(gradient: jax.Array) -> UnfinishedNorm:
    """As `quick_norm`, up to the sum of squares."""
    square = sum_of_squares(gradient)
    slack = precision.rounding_growth(roundings(gradient.shape[1:]) + 8, square.dtype)
    return UnfinishedNorm(_norm_of_square, (square, float(math.prod(gradient.shape[1:])), slack))


@jax.jit  # traced once for all gradients of one shape
def sum_of_squares(gradient: jax.Array) -> jax.Array:
    wide = gradient.astype(precision.accumulation_dtype(gradient.dtype))
    return staged_sum(wide * wide)[0]


def _norm_of_square(square: jax.Array, entries: Any, slack: Any) -> MeasuredNorm:
    lost = entries * SMALLEST_SQUARE
    norm = Norm(root(square), root(square + lost) * (1 + slack))
    return MeasuredNorm(norm, in_range(square, SAFE_SQUARES))


def in_range(square: jax.Array, bounds: tuple[float, float]) -> jax.Array:
    """Whether squares are zero or within the bounds."""
    low, high = bounds
    return (square == 0) | ((square >= low) & (square <= high))


def scaled_square(x: jax.Array) -> tuple[jax.Array, jax.Array, int]:
    """`(square, exponent, roundings)`: the squared norm of each x[i] is `square * 4**exponent`."""
    scaled, exponent = scale_to_one(x)
    square, terms = staged_sum(scaled * scaled)
    return square, exponent, terms


def staged_sum(x: jax.Array) -> tuple[jax.Array, int]:
    """Sums `x` (B, ...) to (B,) in short stages. Also returns the number of roundings in a row.

    On one device, each stage sums as many dimensions as make a short sum, the last ones first.

    On several devices, each dimension is split into (outer, inner). The inner parts are summed
    first. They lie within one shard, because a mesh splits dimensions into few, power-of-two
    pieces. The outer parts are summed last and together, so only B numbers cross the mesh, not a
    row or column of each gradient. Barriers keep the compiler from merging the stages back into one
    long sum.
    """
    shape = x.shape[1:]
    if on_one_device():
        for stage, dims in enumerate(_runs(shape)):
            x = jax.lax.optimization_barrier(x) if stage else x
            if math.prod(dims) > ONE_STAGE:
                x = _sum_in_chunks(x, x.ndim - 1)
            x = jnp.sum(x, axis=tuple(range(x.ndim - len(dims), x.ndim)))
        return x, roundings(shape)
    outer, inner = _stages(shape)
    parts = [n for pair in zip(outer, inner, strict=True) for n in pair]
    x = x.reshape(x.shape[0], *parts)
    for position in reversed(range(len(shape))):
        x = _sum_in_chunks(x, 2 * position + 2)
    return jnp.sum(x, axis=tuple(range(1, x.ndim))), roundings(shape)


def _runs(shape: Sequence[int]) -> list[tuple[int, ...]]:
    """The dimensions that are summed together, last ones first. A long one is summed alone."""
    found = list[tuple[int, ...]]()
    for size in reversed(shape):
        if found and size * math.prod(found[-1]) <= ONE_STAGE:
            found[-1] = (size, *found[-1])
        else:
            found.append((size,))
    return found


def _stages(shape: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """How each dimension is split: (outer, inner). A small array is summed in one stage."""
    if np.prod(shape) <= ONE_STAGE:
        return list(shape), [1] * len(shape)
    limit = 2 ** min(6, 12 // len(shape))
    outer = [min(limit, size & -size) for size in shape]
    return outer, [size // out for size, out in zip(shape, outer, strict=True)]


def _sum_in_chunks(x: jax.Array, axis: int) -> jax.Array:
    """Sums one axis to length 1, `CHUNK` numbers at a time."""
    while (length := x.shape[axis]) > 1:
        width = min(CHUNK, length)
        rest = -length % width
        if rest:
            x = jax.lax.pad(
                x, jnp.zeros((), x.dtype), [(0, rest * (i == axis), 0) for i in range(x.ndim)]
            )
        x = x.reshape(*x.shape[:axis], -1, width, *x.shape[axis + 1 :])
        x = jax.lax.optimization_barrier(jnp.sum(x, axis=axis + 1))
    return x


def roundings(shape: tuple[int, ...]) -> int:
    """The largest number of additions that one term goes through in `staged_sum`."""
    if on_one_device():
        return sum(
            math.prod(dims) if math.prod(dims) <= ONE_STAGE else _additions_in_chunks(dims[0]) + 1
            for dims in _runs(shape)
        )
    outer, inner = _stages(shape)
    return math.prod(outer) + sum(map(_additions_in_chunks, inner))


def _additions_in_chunks(length: int) -> int:
    """The largest number of additions that one term goes through in `_sum_in_chunks`."""
    terms = 0
    while length > 1:
        width = min(CHUNK, length)
        terms, length = terms + width, -(-length // width)
    return terms
