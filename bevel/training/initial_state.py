"""Creates the arrays of the state before step 0: each has its own memory and is created once.

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
# In bytes. For smaller trees, compiling a program costs more than the temporary arrays it avoids.
WORTH_A_PROGRAM = 2**24
# The operations that initialise most optimizers. Their results are the same in a program and
# outside. Compiled arithmetic may round differently, so the state would depend on the mesh.
FILLS = {"broadcast_in_dim", "convert_element_type", "copy", "iota", "reshape", "select_n"}
EXACT = FILLS | {"jit", "optimization_barrier", "reshard", "sharding_constraint"}


def own(x: Any, sharding: jax.sharding.Sharding | None = None) -> jax.Array:
    """Copies an array or a number of the caller, by default to the device that holds it."""
    placed = jnp.asarray(x) if sharding is None else put_same(x, sharding)
    on_cpu = next(iter(placed.devices())).platform == "cpu"
    if isinstance(x, np.ndarray) and not on_cpu:  # on a CPU, the memory of NumPy may be used
        return placed
    return jnp.array(placed, copy=True)


def distinct(state: PyTree) -> PyTree:
    """Copies each array that is, or shares memory with, an earlier one of the tree."""
    known = set[Any]()

    def alone(x: jax.Array) -> jax.Array:
        if known & (places := _places(x)):
            x = jnp.array(x, copy=True)
            places = _places(x)
        known.update(places)
        return x

    return jax.tree.map(alone, state)


def _places(x: jax.Array) -> set[Any]:
    """What identifies the memory of an array: the object and, on a single device, the address.

    Looking up the addresses of an array on several devices would create an array for each device.
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
    """Returns `function(params)`. Large arrays are created on the devices that will hold them.

    To do so, the function is compiled. Outside a program, JAX first creates zeros on one device and
    then splits them. It also creates arrays of which `function` reads only the type, such as
    parameters converted to float32. `shardings` is called with the types of the result, `params`
    and the mesh. A function that does arithmetic, such as drawing random weights, is not compiled.
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
    except Exception:  # it may need values, or a mesh that it does not see while it is traced
        return function(params)


def _is_exact(program: Jaxpr) -> bool:
    """Returns whether a program only fills, copies and converts arrays."""
    inner = [x.jaxpr for e in program.eqns for x in e.params.values() if hasattr(x, "jaxpr")]
    return all(e.primitive.name in EXACT for e in program.eqns) and all(map(_is_exact, inner))


def like_params(state: PyTree, params: PyTree, mesh: Any) -> PyTree:
    """Returns shardings for a state: an array that mirrors a parameter is sharded like it.

    Such an array, for example a moment of Adam, has the shape of the parameter, and its path ends
    with the path of the parameter. Other arrays are replicated.
    """
    by_path = {path: x for path, x in jax.tree_util.tree_leaves_with_path(params)}
    replicated = NamedSharding(mesh, PartitionSpec())

    def sharding(path: Any, x: Any) -> NamedSharding:
        matches = (by_path.get(path[i:]) for i in range(len(path)))
        param = next((p for p in matches if p is not None and p.shape == x.shape), None)
        return replicated if param is None else param.sharding

    return jax.tree_util.tree_map_with_path(sharding, state)
