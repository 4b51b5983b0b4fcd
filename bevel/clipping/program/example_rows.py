"""Keeps the values of each example on the devices that hold the example.

Where the loss has no constraints, the compiler propagates shardings from the arguments through the
program, elementwise operations first and broadcasts last. Tokens reach the activations through a
broadcast, so a parameter that is sharded over the batch axes may decide before the batch does how
the activations are sharded. They would then be split by features and move in every product.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bevel.sharding.axes import MeshLayout
from bevel.sharding.sharding_group import sharded_alike


class ExampleRows:
    """Ties values of one example to a number of that example.

    When the program is batched, the compiler shards the example axis of each value like that of the
    number, which is a slice of the batch. The other dimensions stay free.
    """

    def __init__(self, number: jax.Array) -> None:
        self.number = number
        self.count = 0  # of tied values and their cotangents

    @classmethod
    def of(cls, example: Sequence[Any], layout: MeshLayout) -> "ExampleRows | None":
        """None where the compiler does not split the batch, or no leaf of it holds numbers.

        `example` are the leaves of one example's batch.
        """
        found = _largest_leaf(example) if layout.spread else None
        return None if found is None else cls(_first_number(found))

    @staticmethod
    def numbers(batch: Sequence[Any], layout: MeshLayout) -> list[jax.Array]:
        """The numbers (B,) of all examples of a batch, in a list that is empty where `of` is None.

        For programs that are given other values of the examples than their batch.
        """
        found = _largest_leaf(batch) if layout.spread else None
        return [] if found is None else [_first_numbers(found)]

    def tied(self, x: jax.Array) -> jax.Array:
        """`x`. Both `x` and its cotangent are tied."""
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        self.count += 2
        return _tied(x, self.number, self.count - 2)


def _largest_leaf(leaves: Sequence[Any]) -> Any:
    numeric = [x for x in leaves if jnp.issubdtype(x.dtype, jnp.number) and x.size]
    return max(numeric, key=lambda x: x.size, default=None)


@jax.custom_batching.custom_vmap
def _first_number(x: jax.Array) -> jax.Array:
    return _first_numbers(x[None])[0]


@_first_number.def_vmap
def _(size: int, batched: Sequence[bool], x: jax.Array) -> tuple[jax.Array, bool]:
    del size, batched
    return _first_numbers(x), True


def _first_numbers(x: jax.Array) -> jax.Array:
    # Not by an index: the compiler propagates shardings through a dynamic slice early.
    ones = jax.lax.dynamic_slice(x, (0,) * x.ndim, (x.shape[0], *(1,) * (x.ndim - 1)))
    return jnp.real(ones.reshape(x.shape[0])).astype(jnp.float32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _tied(x: jax.Array, number: jax.Array, group: int) -> jax.Array:
    return _marked(x, number, group)


def _forward(x: jax.Array, number: jax.Array, group: int) -> tuple[jax.Array, jax.Array]:
    return _marked(x, number, group), number


def _backward(group: int, number: jax.Array, g: jax.Array) -> tuple[jax.Array, None]:
    return _marked(g, number, group + 1), None


_tied.defvjp(_forward, _backward)


def _marked(x: jax.Array, number: jax.Array, group: int) -> jax.Array:
    """`x`. Under `vmap`, its example axis is sharded like that of `number`."""
    marker = jax.custom_batching.custom_vmap(lambda x, number: x)

    @marker.def_vmap
    def _(size: int, batched: Sequence[bool], x: jax.Array, number: jax.Array) -> tuple[Any, bool]:
        if not all(batched):
            return x, batched[0]
        # Not by a broadcast, through which the compiler propagates shardings last.
        column = number.reshape(size, *(1,) * (x.ndim - 1)).astype(x.dtype)
        like = jax.lax.dynamic_update_slice(jnp.zeros_like(x), column, (0,) * x.ndim)
        return sharded_alike(x, like, group), True

    return marker(x, number)
