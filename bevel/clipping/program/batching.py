"""Runs the program of one example over a batch, with its sharding constraints rewritten.

A sharding constraint written for a batch names the batch axes on some dimension of the value. In
the program of one example, that dimension no longer holds the batch: the example axis that `vmap`
adds does. Each constraint therefore becomes a marker whose batching rule moves the batch axes to
the example axis. If the constraint names no batch axis, the example axis is left to the compiler.
This happens after differentiation, so it covers constraints in backward passes and custom rules.
"""

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from bevel.clipping.program.equations import bind, body_of_call, depends_on, evaluate
from bevel.clipping.program.example_convolutions import by_products, is_by_products
from bevel.clipping.program.isolation import is_sequential
from bevel.clipping.program.loops import with_lean_loops
from bevel.clipping.program.meshes import SILENT, named_axes
from bevel.sharding.axes import (
    SHARDING_PARAMS,
    MeshLayout,
    constraints,
    requested_sharding,
    subprograms,
)
from bevel.sharding.types import spec_axes

# Equations whose bodies are rewritten. Others with a body keep JAX's own batching.
BODIES = {"scan", "while", "cond", "remat2", "checkpoint", "custom_linear_solve"}
CUSTOM_CALLS = {"custom_jvp_call", "custom_vjp_call"}


def over_examples(
    program: ClosedJaxpr, layout: MeshLayout, summed: int = 0
) -> Callable[..., list[Any]]:
    """Returns `f(consts, params, examples, constants)`, which runs every row of `examples`.

    The first `summed` outputs are sums over the examples (`accumulate/low_memory.py`), the others
    have one row per example.
    """

    def one(consts: Any, params: Any, examples: Any, constants: Any) -> list[Any]:
        inputs = (*params, *examples, *constants)
        if layout.manual:
            # Constraints cannot name manual axes here, so JAX's own rule is correct.
            return jax.core.eval_jaxpr(program.jaxpr, consts, *inputs)
        first, last = len(params), len(params) + len(examples)
        batched = depends_on(program.jaxpr, program.jaxpr.invars[first:last])
        return _replay(program.jaxpr, consts, inputs, layout, batched)

    split = not layout.manual and split_by_inner_shard_maps(program, layout)
    spmd = layout.batch_axes if split and layout.batch_axes else None
    out_axes = [None if i < summed else 0 for i in range(len(program.jaxpr.outvars))]
    run = jax.vmap(one, (None, None, 0, None), out_axes, spmd_axis_name=spmd)
    return with_lean_loops(program, run)


def split_by_inner_shard_maps(program: ClosedJaxpr, layout: MeshLayout) -> bool:
    """Whether every inner shard_map runs over the batch axes without using them.

    The example axis must then enter it split over the batch axes: otherwise each device computes
    all examples. If one communicates over the batch axes, every device must compute all examples:
    otherwise it would mix the examples of different devices.
    """
    specs: list[tuple[Any, set[str]]] = []
    pending = [program.jaxpr]
    while pending:
        for eqn in pending.pop().eqns:
            pending += subprograms(eqn.params)
            if eqn.primitive.name not in SILENT and named_axes(eqn) & set(layout.batch_axes):
                return False
            if eqn.primitive.name == "shard_map":
                own = (eqn.params["in_specs"], eqn.params["out_specs"])
                flat = jax.tree.leaves(own, is_leaf=lambda s: isinstance(s, PartitionSpec))
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
    """Evaluates a program with its sharding requests replaced by markers.

    `batched` are the variables that depend on the example, if known. The others need no marker,
    because they get no example axis. A marker cannot be differentiated.
    """

    def handle(eqn: JaxprEqn, inputs: list[Any]) -> Sequence[Any]:
        operand = eqn.invars[0] if eqn.invars else None
        depends = batched is None or (not isinstance(operand, Literal) and operand in batched)
        return replay_equation(eqn, inputs, layout, depends)

    return evaluate(jaxpr, consts, args, handle)


def replay_equation(
    eqn: JaxprEqn, inputs: Sequence[Any], layout: MeshLayout, depends: bool = True
) -> Sequence[Any]:
    """Evaluates an equation with its sharding requests replaced by markers.

    `depends`: whether the first operand may depend on the example.
    """
    explicit = layout.explicit_mesh is not None
    name = eqn.primitive.name
    requested, inner = requested_sharding(eqn), subprograms(eqn.params)
    if name in ("sharding_constraint", "reshard") and requested is not None:
        return [_marked(inputs[0], requested, layout, shared=not depends)]
    if name in ("reshard", "mesh_cast"):
        return inputs
    body = body_of_call(eqn)
    # Keep custom rules where possible, so that the clipping itself can be differentiated.
    if name in CUSTOM_CALLS and (explicit or any(map(constraints, inner))):
        body = eqn.params["call_jaxpr"]
    if body is not None:
        return _replay(body.jaxpr, body.consts, inputs, layout)
    changed: dict[str, Any] = {}
    if requested is not None or explicit:
        changed = {p: None for p in SHARDING_PARAMS if p in eqn.params}
    if name in BODIES and (explicit or any(map(constraints, inner))):
        changed |= {
            key: _rewritten(value, layout)
            for key, value in eqn.params.items()
            if subprograms({key: value})
        }
    if explicit and is_sequential(eqn):
        return _loop_over_examples(eqn, inputs, layout)
    if explicit and is_by_products(eqn):
        return _by_products(eqn.params["call"].jaxpr.eqns[0], inputs, layout)
    if name == "shard_map" and explicit:
        return _inner_shard_map(eqn, inputs, layout)
    outputs = bind(eqn, inputs, in_its_context=not explicit, **changed)
    if requested is not None:
        outputs = [_marked(x, requested, layout) for x in outputs]
    return outputs


def _loop_over_examples(eqn: JaxprEqn, inputs: Sequence[Any], layout: MeshLayout) -> Sequence[Any]:
    """Rebuilds a loop over the examples without the Explicit shardings in its body."""
    body = eqn.params["call"]

    @jax.custom_batching.sequential_vmap
    def one(*args: Any) -> tuple[Any, ...]:
        return tuple(_replay(body.jaxpr, body.consts, args, layout))

    return list(one(*inputs))


def _by_products(eqn: JaxprEqn, inputs: Sequence[Any], layout: MeshLayout) -> Sequence[Any]:
    """Evaluates a convolution without the Explicit type of its result."""
    free = {p: None for p in SHARDING_PARAMS if p in eqn.params}
    output = by_products(eqn.replace(params=eqn.params | free))(*inputs)
    requested = requested_sharding(eqn)
    return [output if requested is None else _marked(output, requested, layout)]


def _inner_shard_map(eqn: JaxprEqn, inputs: Sequence[Any], layout: MeshLayout) -> Sequence[Any]:
    """Rebuilds an inner shard_map on the current mesh, whose Explicit axes are now Auto."""
    return jax.shard_map(
        lambda *args: tuple(_replay(eqn.params["jaxpr"], (), args, layout)),
        in_specs=tuple(eqn.params["in_specs"]),
        out_specs=tuple(eqn.params["out_specs"]),
        axis_names=set(eqn.params["newly_manual_axes"]),
        check_vma=eqn.params["check_vma"],
    )(*inputs)


def _rewritten(body: Any, layout: MeshLayout) -> Any:
    """Retraces a loop body, a branch or a tuple of branches with markers."""
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
    """`x` with the requested sharding. Under `vmap`, its batch axes move to the example axis.

    `shared`: `x` does not depend on the example, so it gets no example axis.
    """
    free = PartitionSpec.UNCONSTRAINED
    # On a mesh of Explicit and Auto axes, a type says nothing about the Auto axes.
    partly_auto = layout.explicit_mesh is not None and not sharding.mesh.are_all_axes_explicit
    unnamed = free if partly_auto else None
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
        # A parameter or a constant keeps the requested sharding where it divides the dimension.
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
