"""Convolutions of two values of one example, such as the gradient of a kernel, on a mesh.

`vmap` turns a convolution whose two operands both belong to the example into one with a group for
each example. XLA splits the groups over a mesh wrongly for some shapes: gradients of other examples
come out, or zeros, without an error. So where the compiler may split the batch, these convolutions
are computed by slices and matrix products instead:

    out[p] = sum_k lhs[stride p + dilation k] rhs[k],    one product for each p, or for each k

The gradient of the kernel of a grouped convolution has batch groups. XLA computes some of these on
a CPU for all pairs of groups, and multiplies those of different groups by zero. Under `vmap`, these
are products of different examples, and zero times infinity is NaN: an example that is not finite
would make the gradients of all others NaN. So these go by products on every device.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from bevel.clipping.program.equations import bind
from bevel.sharding.types import on_one_device

# More products than this are computed in a loop, which holds the slices of one at a time.
UNROLLED = 4


def needs_products(eqn: JaxprEqn) -> bool:
    """Whether an equation is a convolution that goes by products.

    Its examples may not be kept apart, or a GPU would compute it with a group for each example,
    which takes several times as long.
    """
    if eqn.primitive.name != "conv_general_dilated":
        return False
    on_gpu = jax.default_backend() == "gpu"
    return eqn.params["batch_group_count"] > 1 or on_gpu or not on_one_device()


def by_products(eqn: JaxprEqn) -> Callable[..., Any]:
    """The convolution of an equation, which `vmap` computes by products if it must."""

    @jax.custom_batching.custom_vmap
    def convolution(lhs: jax.Array, rhs: jax.Array) -> Any:
        return bind(eqn, (lhs, rhs), in_its_context=False)[0]

    @convolution.def_vmap
    def _(size: int, batched: Sequence[bool], lhs: jax.Array, rhs: jax.Array) -> tuple[Any, bool]:
        del size
        if all(batched):
            return convolve_examples(lhs, rhs, eqn.params, eqn.outvars[0].aval), True
        axes = tuple(0 if own else None for own in batched)
        plain = lambda lhs, rhs: bind(eqn, (lhs, rhs), in_its_context=False)[0]  # noqa: E731
        return jax.vmap(plain, axes)(lhs, rhs), True

    return convolution


def is_by_products(eqn: JaxprEqn) -> bool:
    """Whether an equation is a call of a function that `by_products` made."""
    if eqn.primitive.name != "custom_vmap_call":
        return False
    rule = eqn.params["rule"]
    return getattr(getattr(rule, "__wrapped__", rule), "__module__", "") == __name__


def convolve_examples(lhs: jax.Array, rhs: jax.Array, params: Any, aval: Any) -> jax.Array:
    """`jax.lax.conv_general_dilated` of each lhs[b] with rhs[b]; `aval` is the type of one result.

    `params` are those of the primitive.
    """
    numbers = params["dimension_numbers"]
    strides, dilation = params["window_strides"], params["rhs_dilation"]
    lhs, rhs = _grouped(lhs, rhs, numbers, params)  # (B, groups, N or O, I, spatial...)
    padding = zip(params["padding"], params["lhs_dilation"], strict=True)
    config = [(0, 0, 0)] * 4 + [(low, high, step - 1) for (low, high), step in padding]
    lhs = jax.lax.pad(lhs, jnp.zeros((), lhs.dtype), config)
    kernel = rhs.shape[4:]
    out = tuple(aval.shape[i] for i in numbers.out_spec[2:])
    narrow = jnp.issubdtype(aval.dtype, jnp.floating) and aval.dtype.itemsize < 4
    wide = np.dtype(np.float32) if narrow else aval.dtype

    def product(left: jax.Array, right: jax.Array, summed: int) -> jax.Array:
        """(B, groups, N, spatial..., O), summed over the inputs and `summed` more dimensions."""
        over = tuple(range(3, 4 + summed))
        return jax.lax.dot_general(
            left,
            right,
            ((over, over), ((0, 1), (0, 1))),
            precision=params["precision"],
            preferred_element_type=wide,
        )

    if math.prod(out) <= math.prod(kernel):

        def at_position(start: Any) -> jax.Array:
            return product(_window(lhs, start, kernel, dilation), rhs, len(kernel))

        rows = _stacked(at_position, _starts(out, strides))  # (positions, B, groups, N, O)
        total = jnp.moveaxis(rows, 0, 3).reshape(*rows.shape[1:4], *out, rows.shape[4])
    else:

        def at_offset(start: Any, weights: jax.Array) -> jax.Array:
            return product(_window(lhs, start, out, strides), weights, 0)

        by_offset = jnp.moveaxis(rhs.reshape(*rhs.shape[:4], -1), -1, 0)
        total = _summed(at_offset, _starts(kernel, dilation), by_offset)
    return _ungrouped(total.astype(aval.dtype), numbers, params)


def _starts(sizes: Sequence[int], steps: Sequence[int]) -> list[tuple[int, ...]]:
    """Where each window begins, if there are `sizes` of them, `steps` apart."""
    own = [range(0, n * step, step) for n, step in zip(sizes, steps, strict=True)]
    return list(itertools.product(*own))


def _window(lhs: jax.Array, start: Any, sizes: Sequence[int], steps: Sequence[int]) -> jax.Array:
    """`sizes` entries of each spatial dimension from `start` on, `steps` apart."""
    extents = [(n - 1) * step + 1 for n, step in zip(sizes, steps, strict=True)]
    starts = [0, 0, 0, 0, *(start[i] for i in range(len(extents)))]
    part = jax.lax.dynamic_slice(lhs, starts, (*lhs.shape[:4], *extents))
    return part[(..., *(slice(None, None, step) for step in steps))]


def _stacked(one: Callable[[Any], jax.Array], at: list[tuple[int, ...]]) -> jax.Array:
    if len(at) <= UNROLLED:
        return jnp.stack([one(start) for start in at])
    return jax.lax.map(one, jnp.array(at, np.int32))


def _summed(
    one: Callable[[Any, jax.Array], jax.Array], at: list[tuple[int, ...]], weights: jax.Array
) -> jax.Array:
    total = one(at[0], weights[0])
    if len(at) <= UNROLLED:
        for i, start in enumerate(at[1:], 1):
            total += one(start, weights[i])
        return total
    rest = jnp.array(at[1:], np.int32), weights[1:]
    return jax.lax.scan(lambda total, own: (total + one(*own), None), total, rest)[0]


def _grouped(lhs: jax.Array, rhs: jax.Array, numbers: Any, params: Any) -> Any:
    """Both operands as (B, groups, N or O, I, spatial...)."""
    features, batches = params["feature_group_count"], params["batch_group_count"]
    lhs = jnp.transpose(lhs, (0, *(1 + i for i in numbers.lhs_spec)))  # (B, N, C, spatial...)
    rhs = jnp.transpose(rhs, (0, *(1 + i for i in numbers.rhs_spec)))  # (B, O, I, spatial...)
    size, n, c, *space = lhs.shape
    if batches > 1:
        lhs = lhs.reshape(size, batches, n // batches, c, *space)
    else:
        lhs = jnp.swapaxes(lhs.reshape(size, n, features, c // features, *space), 1, 2)
    groups = max(features, batches)
    return lhs, rhs.reshape(size, groups, rhs.shape[1] // groups, *rhs.shape[2:])


def _ungrouped(total: jax.Array, numbers: Any, params: Any) -> jax.Array:
    """(B, groups, N, spatial..., O) in the order of the convolution's result."""
    by_group = jnp.moveaxis(total, (2, -1), (1, 3))  # (B, N, groups, O, spatial...)
    size, n, groups, o, *space = by_group.shape
    flat = by_group.reshape(size, n, groups * o, *space)
    return jnp.transpose(flat, (0, *(1 + i for i in np.argsort(numbers.out_spec))))
