"""A digest of a traced program that does not depend on the mesh, on names or on memory addresses.

Two programs have the same digest if they have the same equations on the same types with the same
constants. Sharding constraints are left out, because they change with the mesh while the loss stays
the same. Custom derivative rules are not yet equations of the traced loss, so they count by name
only; `derivative_digest` covers their equations.
"""

import hashlib
import itertools
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

# Primitives that return their inputs unchanged, apart from the sharding.
IDENTITIES = {"sharding_constraint", "reshard", "mesh_cast", "pvary", "pcast"}
IDENTITIES |= {"optimization_barrier"}
# Parameters of equations that only concern shardings, layouts or names.
IGNORED_PARAMS = {
    "sharding", "in_shardings", "out_shardings", "out_sharding", "dst_sharding", "in_layouts",
    "out_layouts", "layout", "unconstrained_dims", "mesh", "ctx_mesh", "resource_env", "name",
    "donated_invars", "keep_unused", "inline", "compiler_options_kvs", "debug_info",
}  # fmt: skip
ADDRESS = re.compile("0x[0-9a-f]{6,}")


def program_digest(closed: ClosedJaxpr) -> str:
    """Returns the SHA-256 of a program and its constants, in hex."""
    return hashlib.sha256(_closed_text(closed).encode()).hexdigest()


def derivative_digest(closed: ClosedJaxpr) -> str:
    """Returns the digest of the gradient of a program's first output.

    Empty if the gradient cannot be traced by itself. Inputs are passed without shardings, so a
    program that requires some cannot be traced.
    """
    inputs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in closed.in_avals]
    floats = [k for k, a in enumerate(inputs) if jnp.issubdtype(a.dtype, jnp.floating)]

    def value(*arguments: Any) -> Any:
        return jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *arguments)[0]

    try:
        return program_digest(jax.make_jaxpr(jax.grad(value, argnums=tuple(floats)))(*inputs))
    except Exception:
        return ""


def _closed_text(closed: ClosedJaxpr) -> str:
    consts = [_value_text(const) for const in closed.consts]
    return f"consts {consts} {_jaxpr_text(closed.jaxpr)}"


def _jaxpr_text(jaxpr: Jaxpr) -> str:
    names: dict[Any, str] = {}
    numbers = itertools.count()

    def define(var: Any) -> str:
        return names.setdefault(var, f"v{next(numbers)}:{_type_text(var.aval)}")

    def use(atom: Any) -> str:
        if isinstance(atom, Literal):
            return _value_text(atom.val)
        return names.get(atom) or define(atom)

    lines = [f"in {[define(var) for var in (*jaxpr.constvars, *jaxpr.invars)]}"]
    for eqn in jaxpr.eqns:
        inputs = [use(atom) for atom in eqn.invars]
        if eqn.primitive.name in IDENTITIES and len(eqn.outvars) <= len(inputs):
            names.update(zip(eqn.outvars, inputs, strict=False))
            continue
        params = {
            name: _value_text(value)
            for name, value in sorted(eqn.params.items())
            if name not in IGNORED_PARAMS
        }
        outputs = [define(var) for var in eqn.outvars]
        lines.append(f"{outputs} = {eqn.primitive.name} {params} {inputs}")
    lines.append(f"out {[use(atom) for atom in jaxpr.outvars]}")
    return "; ".join(lines)


def _type_text(aval: Any) -> str:
    shape, dtype = getattr(aval, "shape", ""), getattr(aval, "dtype", type(aval).__name__)
    return f"{dtype}{list(shape)}"


def _value_text(value: Any) -> str:
    if isinstance(value, ClosedJaxpr):
        return f"({_closed_text(value)})"
    if isinstance(value, Jaxpr):
        return f"({_jaxpr_text(value)})"
    if isinstance(value, jax.core.Tracer):
        return _type_text(value.aval)
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        array = np.asarray(value)
        hashed = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
        return f"{array.dtype}{list(array.shape)}#{hashed}"
    if isinstance(value, Mapping):
        return str({str(k): _value_text(v) for k, v in sorted(value.items(), key=str)})
    if isinstance(value, tuple | list):
        return str([_value_text(item) for item in value])
    if isinstance(value, set | frozenset):
        return str(sorted(map(_value_text, value)))
    if isinstance(value, float):
        return value.hex()
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{getattr(value, '__module__', '')}.{value.__qualname__}"
    text = repr(value)
    return type(value).__qualname__ if ADDRESS.search(text) else text
