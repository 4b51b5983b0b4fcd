"""What each way of computing a norm costs for one example, from shapes.

| way     | norm                                        | sum over the batch          |
| ------- | ------------------------------------------- | --------------------------- |
| outer   | product of two vector lengths, for one row  | one contraction             |
| gram    | inner products of all pairs of rows         | one contraction             |
| product | the gradient, formed and dropped            | one contraction             |
| keep    | the gradient, materialised by JAX           | from materialised gradients |
| form    | the same, materialised by a rule's products | from materialised gradients |

Costs count FLOPs, bytes moved, and bytes held until the coefficients are known.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bevel import precision
from bevel.clipping.norms import gram, outer_products
from bevel.clipping.norms.kernels import gram_kernel
from bevel.clipping.norms.registry import GradientSizes
from bevel.clipping.options import WAYS

# FLOPs in the time it takes to move one byte, by platform and by bytes per number.
BALANCE: Mapping[str, Mapping[int, float]] = {
    "gpu": {2: 180.0, 4: 90.0, 8: 10.0},
    "tpu": {2: 200.0, 4: 30.0, 8: 1.0},
    "cpu": {2: 4.0, 4: 8.0, 8: 4.0},
}
# Small Gram matrices do not use matrix units well. They take this many times longer than their
# FLOPs suggest, with a kernel that computes half of each symmetric matrix, and without one.
GRAM_WITH_KERNEL, GRAM_BY_COMPILER = 1.2, 2.4


class NormCost(NamedTuple):
    """The cost for one example, beyond the forward pass and the backward pass of activations."""

    flops: float
    bytes: float
    memory: float  # bytes held until the coefficients are known
    slack: float  # relative slack of the norm, for rows at random angles
    idle: float = 0.0  # FLOPs that matrix units could have done while they wait
    temporary: float = 0.0  # bytes that materialising by a rule's products takes meanwhile

    def time(self, itemsize: int) -> float:
        """The estimated time, in the time it takes to move one byte."""
        balance = BALANCE.get(jax.default_backend(), BALANCE["cpu"])
        return (self.flops + self.idle) / balance[itemsize] + self.bytes


def costs_of(
    sizes: Sequence[GradientSizes], overlapping: bool, itemsize: int
) -> dict[str, NormCost]:
    """The cost of each possible way, for all uses of one parameter together.

    `overlapping`: the uses share elements of the parameter, so their gradients add before the norm.
    """
    excluded = {"product"} if any(s.looked_up for s in sizes) else set()
    if overlapping:
        excluded.add("outer")
        largest = max(sizes, key=lambda s: s.rows * s.left)
        only_lookups = all(s.looked_up for s in sizes)
        sizes = [largest._replace(rows=sum(s.rows for s in sizes), looked_up=only_lookups)]
    result = {}
    for way in (w for w in WAYS if w not in excluded):
        parts = [cost(way, s, itemsize) for s in sizes]
        if None not in parts:
            flops, moved, memory, slack, idle, more = zip(*parts, strict=True)
            totals = sum(flops), sum(moved), sum(memory), max(slack), sum(idle), max(more)
            result[way] = NormCost(*totals)
    return result


def cost(way: str, s: GradientSizes, itemsize: int) -> NormCost | None:
    """The cost for one use, `separate` sums of `rows` outer products. None if it is impossible."""
    n, rows, left, right = s[:4]
    on_gpu = jax.default_backend() == "gpu"
    dtype = np.dtype(np.float64) if itemsize == 8 else np.dtype(np.float32)
    contraction = 2.0 * n * rows * right * (1 if s.looked_up else left)
    values = s.pixels or rows * (1 if s.looked_up else left)  # elements of the left side
    read = n * (values + rows * right) * itemsize
    gradient = n * left * right * itemsize
    # The products of a convolution read a slice for each offset of its window.
    slices = 2.0 * n * rows * (left + left * rows / s.pixels * right) * itemsize if s.pixels else 0
    if way == "keep":
        # JAX batches the gradient of a convolution as a convolution with one group per example.
        moved = 100.0 * slices if on_gpu else slices
        idle = contraction if on_gpu and _padded_sides(s) else 0.0
        return NormCost(contraction, read + moved + 3 * gradient, gradient, 1e-5, idle)
    if way == "form":
        padded = 2.0 * n * rows * sum(_padded_sides(s)) * itemsize
        if not s.pixels and not padded:
            return None
        # The operands, and the slices of all offsets, which are the patches.
        meanwhile = read + n * rows * left * itemsize if s.pixels else 0
        moved = read + slices + padded + 3 * gradient
        return NormCost(contraction, moved, gradient, 1e-5, temporary=meanwhile)
    # Of the scaled operand. A GPU's TF32 is left out: its slack is small.
    rounded = itemsize == 2 and precision.matmul_precision(jnp.bfloat16).scaled == jnp.bfloat16
    rounding = precision.unit_roundoff(jnp.bfloat16 if rounded else dtype)
    # One side is multiplied by the coefficients before the contraction.
    scale_values = s.pixels or (
        not s.looked_up and gram.values_are_scaled(rows, left, right, rounding)
    )
    scaled = n * (values if scale_values else rows * right) * itemsize
    flops, moved = contraction, read + 2.0 * scaled
    kernels = gram_kernel.available(jnp.bfloat16, jnp.bfloat16) and itemsize == 2
    if s.pixels and on_gpu and not (kernels and way == "product"):
        moved += 11.0 * read  # a convolution with a float32 result first widens its operands
    if way == "outer":
        if rows > 1 or s.pixels:
            return None
        return NormCost(flops, moved + read, read, rounding)
    if way == "gram":
        pairs = n * rows * rows
        kernel = kernels and not s.pixels and rows >= gram.KERNEL_ROWS
        times = GRAM_WITH_KERNEL if kernel else GRAM_BY_COMPILER
        across = s.pixels / rows if s.pixels else left  # patches share the products of pixels
        products = 2.0 * pairs * (right + (0 if s.looked_up else across))
        cosine = 0.0 if s.looked_up else gram.VALUE_COSINE
        spread = gram.spread(rows, right) if scale_values else gram.spread(rows, left, cosine)
        slack = _gram_slack(s, dtype) + rounding * math.sqrt(spread)
        done = products / 2 if kernel else products  # half of a symmetric matrix
        moved += read + (0 if kernel else 20 * pairs)
        return NormCost(flops + done, moved, read, slack, idle=times * products - done)
    if s.looked_up:
        return None
    short = right if s.pixels else min(left, right)
    slack = rounding * math.sqrt(gram.spread(rows, short)) if rounded else rounding
    extra = 2.0 * n * rows * short * short if rounded else 0
    formed = slices or 8.0 * n * left * right
    flops, idle = flops + contraction + extra, 0.0
    if s.pixels and kernels:
        # On the chip, from one copy of the operands: at half speed, and slower with few rows.
        idle, formed = flops * (0.9 + 64 / rows), 4.0 * read
    return NormCost(flops, moved + 2 * read + formed, read, slack + rows * 1e-7, idle)


def _padded_sides(s: GradientSizes) -> list[int]:
    """Lengths of vectors that matrix units process at half speed unless they are padded."""
    sides = () if s.looked_up or s.pixels else (s.left, s.right)
    return [size for size in sides if outer_products.is_padded(size)]


def _gram_slack(s: GradientSizes, dtype: np.dtype) -> float:
    def error(entries: int, others: int) -> float:
        near = 1 + 0.8 * s.rows / math.sqrt(others)
        terms = 2 * min(entries, gram_kernel.CHUNK)
        return precision.rounding_growth(terms, dtype) * min(gram.spread(s.rows, others), near)

    left = 0.0 if s.looked_up else error(s.left, s.right)
    return (left + error(s.right, s.left)) / 2
