"""Run the program of one example over a batch, with its sharding constraints moved.

A constraint that the user wrote for the batch names the axes that carry the batch on some
dimension of the value. For one example that dimension holds no batch; the example axis that `vmap`
adds does. So each constraint becomes a marker whose batching rule moves those axes there, and
leaves the example axis to the compiler where the constraint names none of them. This happens after
differentiation, so constraints in backward passes and custom rules are moved as well.
"""

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from bevel.clipping.program.equations import bind, body_of_call, depends_on, evaluate
from bevel.clipping.program.meshes import SILENT, named_axes
from bevel.sharding.axes import (
    SHARDING_PARAMS,
    MeshLayout,
    asked_sharding,
    constraints,
    subprograms,
)
from bevel.sharding.types import spec_axes

# Equations whose bodies are rewritten; others with a body keep JAX's own batching.
BODIES = {"scan", "while", "cond", "remat2", "checkpoint", "custom_linear_solve"}
CUSTOM_CALLS = {"custom_jvp_call", "custom_vjp_call"}


def over_examples(
    program: ClosedJaxpr, layout: MeshLayout, summed: bool = False
) -> Callable[..., list[Any]]:
    """`f(consts, params, examples, constants)`: the program for every row of `examples`.

    `summed`: its outputs are sums over the examples (`accumulate/low_memory.py`), not one for each.
    """

    def one(consts: Any, params: Any, examples: Any, constants: Any) -> list[Any]:
        inputs = (*params, *examples, *constants)
        if layout.manual:
            # Constraints here can only name other axes than the manual ones: JAX's rule is right.
            return jax.core.eval_jaxpr(program.jaxpr, consts, *inputs)
        first, last = len(params), len(params) + len(examples)
        batched = depends_on(program.jaxpr, program.jaxpr.invars[first:last])
        return _replay(program.jaxpr, consts, inputs, layout, batched)

    split = not layout.manual and split_by_inner_shard_maps(program, layout)
    spmd = layout.batch_axes if split and layout.batch_axes else None
    out_axes = None if summed else 0
    return jax.vmap(one, (None, None, 0, None), out_axes, spmd_axis_name=spmd)


def split_by_inner_shard_maps(program: ClosedJaxpr, layout: MeshLayout) -> bool:
    """Whether every inner shard_map runs over the batch axes without using them.

    The example axis must then enter it split over them: otherwise each place computes all examples.
    Where one communicates over them, each place must: else it would mix the examples of places.
    """
    specs: list[tuple[Any, set[str]]] = []
    pending = [program.jaxpr]
    while pending:
        for eqn in pending.pop().eqns:
            pending += subprograms(eqn.params)
            if eqn.primitive.name not in SILENT and named_axes(eqn) & set(layout.batch_axes):
                return False
            if eqn.primitive.name == "shard_map":
                given = (eqn.params["in_specs"], eqn.params["out_specs"])
                flat = jax.tree.leaves(given, is_leaf=lambda s: isinstance(s, PartitionSpec))
                named = {a for spec in flat for entry in spec.partitions for a in spec_axes(entry)}
                specs.append((eqn.params["newly_manual_axes"], named))
    axes = set(layout.batch_axes)
    return bool(specs) and all(axes <= set(manual) and not axes & named for manual, named in specs)


def _replay(
    jaxpr: Jaxpr,
    consts: Sequence[Any],
    args: Sequence[Any],
    layout: MeshLayout,
    batched: Collection[Any] | None = None,
) -> list[Any]:
    """Evaluates a program with its sharding requests turned into markers.

    `batched`: the variables that depend on the example, where that is known; the others need no
    marker, which could not be differentiated.
    """
    explicit = layout.explicit_mesh is not None

    def handle(eqn: JaxprEqn, inputs: list[Any]) -> Sequence[Any]:
        name = eqn.primitive.name
        asked = asked_sharding(eqn)
        if name in ("sharding_constraint", "reshard") and asked is not None:
            operand = eqn.invars[0]
            depends = batched is None or (not isinstance(operand, Literal) and operand in batched)
            return [_marked(inputs[0], asked, layout, shared=not depends)]
        if name in ("reshard", "mesh_cast"):
            return inputs
        body = body_of_call(eqn)
        inner = subprograms(eqn.params)
        # A custom rule is kept where it can be, for whoever differentiates through the clipping.
        if name in CUSTOM_CALLS and (explicit or any(map(constraints, inner))):
            body = eqn.params["call_jaxpr"]
        if body is not None:
            return _replay(body.jaxpr, body.consts, inputs, layout)
        changed: dict[str, Any] = {}
        if asked is not None or explicit:
            changed = {p: None for p in SHARDING_PARAMS if p in eqn.params}
        if name in BODIES and (explicit or any(map(constraints, inner))):
            changed |= {
                key: _rewritten(value, layout)
                for key, value in eqn.params.items()
                if subprograms({key: value})
            }
        if name == "shard_map" and explicit:
            return _inner_shard_map(eqn, inputs, layout)
        outputs = bind(eqn, inputs, in_its_context=not explicit, **changed)
        if asked is not None:
            outputs = [_marked(x, asked, layout) for x in outputs]
        return outputs

    return evaluate(jaxpr, consts, args, handle)


def _inner_shard_map(eqn: JaxprEqn, inputs: Sequence[Any], layout: MeshLayout) -> Sequence[Any]:
    """An inner shard_map made anew on the mesh at hand, whose Explicit axes are Auto now."""
    return jax.shard_map(
        lambda *args: tuple(_replay(eqn.params["jaxpr"], (), args, layout)),
        in_specs=tuple(eqn.params["in_specs"]),
        out_specs=tuple(eqn.params["out_specs"]),
        axis_names=set(eqn.params["newly_manual_axes"]),
        check_vma=eqn.params["check_vma"],
    )(*inputs)


def _rewritten(body: Any, layout: MeshLayout) -> Any:
    """A loop body, branch or tuple of branches, traced anew with markers."""
    if isinstance(body, tuple | list):
        branches = [_rewritten(branch, layout) for branch in body]
        return type(body)(*branches) if hasattr(body, "_fields") else type(body)(branches)
    if not isinstance(body, Jaxpr | ClosedJaxpr):
        return body
    closed = body if isinstance(body, ClosedJaxpr) else ClosedJaxpr(body, ())
    inputs = [
        jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=getattr(a, "weak_type", False))
        for a in closed.in_avals
    ]
    new = jax.make_jaxpr(lambda *args: _replay(closed.jaxpr, closed.consts, args, layout))(*inputs)
    return new if isinstance(body, ClosedJaxpr) else new.jaxpr


def _marked(x: Any, sharding: NamedSharding, layout: MeshLayout, shared: bool = False) -> Any:
    """`x`, constrained as asked, batch axes on the example axis once there is one.

    `shared`: no example axis will come.
    """
    free = PartitionSpec.UNCONSTRAINED
    # On a mesh of Explicit and Auto axes, a type says nothing about the Auto ones.
    half_known = layout.explicit_mesh is not None and not sharding.mesh.are_all_axes_explicit
    unnamed = free if half_known else None
    partitions = tuple(sharding.spec.partitions)
    spec = (*partitions, *(None,) * (x.ndim - len(partitions)))
    entries = [unnamed if entry is None else entry for entry in spec]
    named = [axis for entry in entries for axis in spec_axes(entry)]
    moved = tuple(axis for axis in layout.batch_axes if axis in named)

    def constrain(y: jax.Array, spec: Sequence[Any]) -> jax.Array:
        if layout.explicit_mesh is not None or isinstance(sharding.mesh, AbstractMesh):
            return jax.lax.with_sharding_constraint(y, PartitionSpec(*spec))
        placed = NamedSharding(
            sharding.mesh, PartitionSpec(*spec), memory_kind=sharding.memory_kind
        )
        return jax.lax.with_sharding_constraint(y, placed)

    def without_batch(entry: Any) -> Any:
        left = tuple(axis for axis in spec_axes(entry) if axis not in moved)
        return free if entry is free else (left or unnamed)

    def unbatched(y: jax.Array) -> jax.Array:
        # A parameter or a constant keeps what the user asked, where that divides.
        sizes = (layout.explicit_mesh or sharding.mesh).shape
        spec = [
            entry
            if y.shape[d] % math.prod(sizes[a] for a in spec_axes(entry)) == 0
            else without_batch(entry)
            for d, entry in enumerate(entries)
        ]
        return constrain(y, spec)

    marker = jax.custom_batching.custom_vmap(unbatched)

    @marker.def_vmap
    def _(axis_size: int, batched: Sequence[bool], y: jax.Array) -> tuple[jax.Array, bool]:
        del axis_size, batched
        return constrain(y, [moved or free, *map(without_batch, entries)]), True

    return unbatched(x) if shared else marker(x)
