"""The arrays of a state before step 0: each has memory of its own, and none is made twice.

A step donates its state, so an array of the state must not share memory with an array of the caller
or with another array of the state.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bevel.sharding.same_values import put_same
from bevel.training.state import copied

PyTree = Any
# A smaller tree is not worth a program: what its arrays are made from may exist for a moment.
WORTH_A_PROGRAM = 2**24
# What optimizers begin with, which has the same bits in a program and in Python. A compiler rounds
# arithmetic differently, so the state would depend on the mesh.
FILLS = {"broadcast_in_dim", "convert_element_type", "copy", "iota", "reshape", "select_n"}
EXACT = FILLS | {"jit", "optimization_barrier", "reshard", "sharding_constraint"}


def own(x: Any, sharding: jax.sharding.Sharding | None = None) -> jax.Array:
    """A copy of an array of the caller, or a number, by default on the device where it is."""
    placed = jnp.asarray(x) if sharding is None else put_same(x, sharding)
    on_cpu = next(iter(placed.devices())).platform == "cpu"
    if isinstance(x, np.ndarray) and not on_cpu:  # on a CPU, the memory of NumPy may be used
        return placed
    return jnp.array(placed, copy=True)


def distinct(state: PyTree) -> PyTree:
    """Copies the arrays that are the same as, or share memory with, an earlier one."""
    known = set[Any]()

    def alone(x: jax.Array) -> jax.Array:
        if known & (places := _places(x)):
            x = jnp.array(x, copy=True)
            places = _places(x)
        known.update(places)
        return x

    return jax.tree.map(alone, state)


def _places(x: jax.Array) -> set[Any]:
    """What tells an array from others: itself and, on a single device, its address.

    Looking up the addresses of an array on several devices would create an array for each.
    """
    places: set[Any] = {id(x)}
    if x.nbytes and len(x.devices()) == 1:
        with contextlib.suppress(Exception):  # some types and backends have no addresses
            places.add((*x.devices(), x.unsafe_buffer_pointer()))
    return places


def made_from(
    function: Callable[[PyTree], PyTree],
    params: PyTree,
    mesh: Mesh | None,
    shardings: Callable[..., PyTree] | None = None,
) -> PyTree:
    """`function(params)`, whose large arrays are made on the devices where they stay.

    Without a program, JAX first makes zeros on one device and then splits them, and what
    `function` only reads the type of, such as parameters in float32, exists for a moment.
    `shardings` is called with the types of the result, `params` and the mesh. A function with
    arithmetic, such as random weights, is not compiled.
    """
    leaves = jax.tree.leaves(params)
    narrow = any(jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize < 4 for x in leaves)
    many = mesh is not None and mesh.size > 1
    if not (narrow or many) or sum(x.nbytes for x in leaves) < WORTH_A_PROGRAM:
        return function(params)
    try:
        if not _is_exact(jax.make_jaxpr(function)(params).jaxpr):
            return function(params)
        chosen = None
        if shardings and mesh is not None:
            chosen = shardings(jax.eval_shape(function, params), params, mesh)
        return jax.jit(lambda x: copied(function(x)), out_shardings=chosen)(params)
    except Exception:  # it may need values, or another mesh than it sees while it is traced
        return function(params)


def _is_exact(program: Jaxpr) -> bool:
    """Whether a program only fills, copies and converts arrays."""
    inner = [x.jaxpr for e in program.eqns for x in e.params.values() if hasattr(x, "jaxpr")]
    return all(e.primitive.name in EXACT for e in program.eqns) and all(map(_is_exact, inner))


def like_params(state: PyTree, params: PyTree, mesh: Any) -> PyTree:
    """The shardings of a state on the mesh: those of the parameters for its copies of them.

    A copy of a parameter has its shape, and its path at the end of a longer one. Other arrays are
    replicated.
    """
    by_path = {path: x for path, x in jax.tree_util.tree_leaves_with_path(params)}
    replicated = NamedSharding(mesh, PartitionSpec())

    def sharding(path: Any, x: Any) -> NamedSharding:
        matches = (by_path.get(path[i:]) for i in range(len(path)))
        param = next((p for p in matches if p is not None and p.shape == x.shape), None)
        return replicated if param is None else param.sharding

    return jax.tree_util.tree_map_with_path(sharding, state)
