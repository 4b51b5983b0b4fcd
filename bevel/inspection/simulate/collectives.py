"""Rules for all collectives, written for one device under a `vmap` over the mesh axes.

A collective is a function of the stacked values of its members and of the index of this device
among them. The stack is built by gathering one vmapped axis at a time, which `vmap` always
supports. Tuples of axes, groups and partial permutations are then ordinary operations on the stack.
The stack is equal for all members, so `vmap` keeps only one copy of it.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from bevel.errors import FixArgumentsError

# Primitives that change the type of a value but not the value.
CASTS = {"pvary", "preduced", "sharding_constraint", "reshard", "mesh_cast", "reduced_vary_cast"}
CASTS |= {"reduced_vary_cast_p", "vary_unreduced_cast", "vary_unreduced_cast_p"}
# The second halves of asynchronous collectives, whose first halves already compute the result.
CASTS |= {"all_gather_done", "psum_done", "reduce_scatter_done", "all_to_all_done"}
CASTS |= {"ppermute_done", "pbroadcast_done"}


@dataclasses.dataclass(frozen=True)
class _Members:
    """The stacked values of the devices that take part, and the index of this one."""

    values: jax.Array
    index: jax.Array

    @property
    def count(self) -> int:
        return self.values.shape[0]


def _members(
    x: jax.Array, axis_name: Any, axis_index_groups: Any = None, axis_size: int | None = None
) -> _Members:
    """The devices along the axes, the last varying fastest, or only those of this one's group."""
    stack = x
    for name in reversed(names_of(axis_name)):
        stack = jax.lax.all_gather(stack, name)
    stack = stack.reshape(-1, *x.shape)
    index = _index_along(names_of(axis_name))
    if axis_index_groups is None:
        return _Members(stack, index)
    tables = tables_of_groups(axis_index_groups, stack.shape[0])
    table, group_of, index_of = map(jnp.asarray, tables)
    return _Members(stack[table[group_of[index]]], index_of[index])


def _index_along(names: Sequence[str]) -> jax.Array:
    """The index of this device along several axes, the last varying fastest."""
    index = jnp.int32(0)
    for name in names:
        index = index * np.int32(jax.lax.axis_size(name)) + jax.lax.axis_index(name)
    return index


def tables_of_groups(groups: Any, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A table of the members of each group, and the group of each device and its index there."""
    sizes = {len(group) for group in groups}
    members = sorted(device for group in groups for device in group)
    if len(sizes) != 1 or members != list(range(count)):
        raise FixArgumentsError(
            f"axis_index_groups={groups} cannot be simulated: name each of the {count} devices "
            "once, in groups of equal size."
        )
    table = np.array(groups, np.int32)
    group_of, index_of = np.zeros((2, count), np.int32)
    for number, group in enumerate(groups):
        group_of[list(group)] = number
        index_of[list(group)] = np.arange(len(group))
    return table, group_of, index_of


def _reduction(reduce: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """The rule of psum, pmax or pmin. Integers in `axes` are dimensions of the value itself."""

    def collective(x: jax.Array, *, axes: Any, axis_index_groups: Any = None) -> jax.Array:
        dimensions = tuple(a for a in axes if isinstance(a, int))
        names = [a for a in axes if not isinstance(a, int)]
        x = reduce(x, dimensions) if dimensions else x
        return reduce(_members(x, names, axis_index_groups).values, (0,)) if names else x

    return collective


def _sum(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    return jnp.sum(x, axes, dtype=x.dtype)


def _all_gather(
    x: jax.Array, *, all_gather_dimension: int, tiled: bool, **devices: Any
) -> jax.Array:
    gathered = jnp.moveaxis(_members(x, **devices).values, 0, all_gather_dimension)
    return _merged(gathered, all_gather_dimension) if tiled else gathered


def _reduce_scatter(
    x: jax.Array, *, scatter_dimension: int, tiled: bool, **devices: Any
) -> jax.Array:
    group = _members(x, **devices)
    return _part(_sum(group.values, (0,)), group, scatter_dimension, tiled)


def _all_to_all(
    x: jax.Array, *, split_axis: int, concat_axis: int, tiled: bool = True, **devices: Any
) -> jax.Array:
    """The primitive keeps both dimensions, tiled or not."""
    group = _members(x, **devices)
    received = _part(group.values, group, split_axis + 1, tiled=True)
    return _merged(jnp.moveaxis(received, 0, concat_axis), concat_axis)


def _part(x: jax.Array, group: _Members, dimension: int, tiled: bool) -> jax.Array:
    """This member's part of `x` along a dimension, which is dropped unless `tiled`."""
    if not tiled:
        return jax.lax.dynamic_index_in_dim(x, group.index, dimension, keepdims=False)
    size = x.shape[dimension] // group.count
    return jax.lax.dynamic_slice_in_dim(x, group.index * np.int32(size), size, dimension)


def _merged(x: jax.Array, dimension: int) -> jax.Array:
    """`x` with a dimension and the next one merged."""
    shape = list(x.shape)
    shape[dimension : dimension + 2] = [shape[dimension] * shape[dimension + 1]]
    return x.reshape(shape)


def _ppermute(x: jax.Array, *, axis_name: Any, perm: Any) -> jax.Array:
    """Devices that receive nothing get zeros."""
    group = _members(x, axis_name)
    for numbers in zip(*perm, strict=True):
        if len(set(numbers)) < len(numbers) or not set(numbers) <= set(range(group.count)):
            raise FixArgumentsError(
                f"ppermute has perm={perm}: sources and destinations must be unique, and be "
                f"indices of the {group.count} devices along {axis_name}."
            )
    sources = np.full(group.count, -1, np.int32)
    for source, target in perm:
        sources[target] = source
    source = jnp.asarray(sources)[group.index]
    sent = group.values[jnp.maximum(source, np.int32(0))]
    return sent if (sources >= 0).all() else jnp.where(source >= 0, sent, jnp.zeros_like(sent))


def _pbroadcast(x: jax.Array, source: int | jax.Array, **devices: Any) -> jax.Array:
    return _members(x, **devices).values[source]


def _ragged_all_to_all(
    operand: jax.Array,
    output: jax.Array,
    input_offsets: jax.Array,
    send_sizes: jax.Array,
    output_offsets: jax.Array,
    recv_sizes: jax.Array,
    **devices: Any,
) -> jax.Array:
    """Each sender gives start, number and target offset of its rows for each receiver."""
    gathered: Callable[[Any], _Members] = functools.partial(_members, **devices)
    senders = gathered(operand)
    starts, sizes, targets = (
        gathered(x).values[:, senders.index] for x in (input_offsets, send_sizes, output_offsets)
    )
    rows = jnp.arange(output.shape[0], dtype=starts.dtype)
    for sender in range(senders.count):
        row = rows - targets[sender]
        received = (row >= 0) & (row < sizes[sender])
        sent = senders.values[sender][jnp.clip(row + starts[sender], 0, operand.shape[0] - 1)]
        output = jnp.where(received.reshape(-1, *(1,) * (output.ndim - 1)), sent, output)
    return output


def names_of(axis_name: Any) -> tuple[str, ...]:
    return tuple(axis_name) if isinstance(axis_name, tuple | list) else (axis_name,)


RULES: dict[str, Callable[..., jax.Array]] = {
    "psum": _reduction(_sum),
    "psum_invariant": _reduction(_sum),
    "unreduced_psum": _reduction(_sum),
    "pmax": _reduction(jnp.max),
    "unreduced_pmax": _reduction(jnp.max),
    "pmin": _reduction(jnp.min),
    "unreduced_pmin": _reduction(jnp.min),
    "all_gather": _all_gather,
    "all_gather_invariant": _all_gather,
    "all_gather_reduced": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "unreduced_reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "ragged_all_to_all": _ragged_all_to_all,
    "ppermute": _ppermute,
    "pbroadcast": _pbroadcast,
    "pbroadcast_dynamic": _pbroadcast,
    "axis_index": lambda *, axis_name: _index_along(names_of(axis_name)),
}


def rule_of(eqn: JaxprEqn) -> Callable[..., jax.Array] | None:
    """The rule of a collective, or None for other equations."""
    return RULES.get(eqn.primitive.name.removesuffix("_start"))


def named_axes(eqn: JaxprEqn) -> set[str]:
    """The mesh axes that an equation itself communicates over or reads its index on."""
    found = {getattr(effect, "name", None) for effect in eqn.effects}
    for param in ("axis_name", "axes", "axis_names"):
        value = eqn.params.get(param)
        found |= set(value) if isinstance(value, tuple | list | set | frozenset) else {value}
    return {name for name in found if isinstance(name, str)}
