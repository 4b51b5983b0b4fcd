"""Adapts a call to the mesh: Auto axes, Explicit axes, or manual axes inside `shard_map`."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from bevel.checks import whole_number
from bevel.clipping.arguments import Leaves
from bevel.clipping.options import Task
from bevel.clipping.program.trace import ExampleFunction, TracedExample, trace
from bevel.errors import FixArgumentsError, MoveCollectiveError, PadBatchError
from bevel.sharding import axes, types
from bevel.sharding.axes import ArgumentShardings, MeshLayout

# Equations that name manual axes without communicating over them.
SILENT = {"pvary", "pcast", "axis_index", "axis_size"}
# How many pieces one example's values are assumed to be split into, at most, on an unknown mesh.
MOST_PIECES = 8


def on_mesh(task: Task, leaves: Leaves, seen: ArgumentShardings) -> tuple[MeshLayout, Leaves]:
    """The mesh layout, and the arguments, typed as differentiation on it needs.

    Inside shard_map, autodiff sums the gradient of a replicated parameter over the shards before a
    norm could be computed. It does not sum the gradients of parameters that are typed as varying.
    """
    manual = types.manual_axes()
    unknown = [axis for axis in task.reduce_axes if axis not in manual]
    if unknown:
        raise FixArgumentsError(
            f"reduce_axes names {unknown[0]!r}, but the manual axes here are {manual}. reduce_axes "
            "is for calls inside jax.shard_map. Leave it out elsewhere: the sum is already global."
        )
    if not manual:
        mesh = types.explicit_mesh(leaf for group in leaves for leaf in group)
        detected = (*seen.batch_axes, *axes.axes_of_arguments(leaves.batch))
        batch_axes = tuple(dict.fromkeys(detected)) if task.batch_axes is None else task.batch_axes
        spread = mesh is None and any(types.mesh_size(x) > 1 for x in leaves.batch)
        return MeshLayout(batch_axes, mesh, params=seen.params, spread=spread), leaves
    if task.batch_axes is None:
        varying = frozenset[str]().union(*map(types.varying_axes, leaves.batch))
        batch_axes = tuple(axis for axis in manual if axis in varying)
    else:
        batch_axes = task.batch_axes
        axes.check_declared(batch_axes, dict.fromkeys(manual, 1))
    if types.types_track_varying_axes():
        params, keys = (
            [types.as_varying(x, batch_axes) for x in xs] for xs in (leaves.params, leaves.keys)
        )
        leaves = leaves._replace(params=params, keys=keys)
    else:
        batch_axes = _untyped_batch_axes(task, manual)
    return MeshLayout(batch_axes, manual=True), leaves


def _untyped_batch_axes(task: Task, manual: tuple[str, ...]) -> tuple[str, ...]:
    """The batch axes where types do not track varying axes.

    They must include every manual axis of size above 1: a parameter that is split over another axis
    would be clipped piece by piece.
    """
    sizes = {axis: jax.lax.axis_size(axis) for axis in manual}
    split = [axis for axis in manual if sizes[axis] > 1]
    declared = task.batch_axes if task.batch_axes is not None else split
    if (len(split) > 1 and task.batch_axes is None) or not set(split) <= set(declared):
        raise FixArgumentsError(
            f"inside shard_map over {manual} with check_vma=False, JAX does not track which values "
            "shards share, so a parameter split over one axis would be clipped piece by piece. "
            "Use check_vma=True, or name all axes in batch_axes if each of them carries the batch."
        )
    return tuple(declared)


def batch_layout(
    task: Task, layout: MeshLayout, example: ExampleFunction, leaves: Leaves, program: TracedExample
) -> tuple[MeshLayout, int]:
    """The layout with its batch axes, and the number of shards they split the batch into.

    Axes come from the caller, from the arguments' shardings, and from sharding constraints in the
    function or its backward pass: an axis that a constraint names on a dimension that grows with
    the batch carries the batch.
    """
    if layout.manual:
        return layout, 1
    requested = axes.constraints(program.jaxpr.jaxpr)
    concrete = [x.sharding for group in leaves for x in group if not isinstance(x, jax.core.Tracer)]
    shardings = [s for s in (*concrete, *layout.params) if isinstance(s, NamedSharding)]
    sizes = axes.mesh_sizes((*shardings, *(s for s, _ in requested)), layout.explicit_mesh)
    if task.batch_axes is not None:
        axes.check_declared(task.batch_axes, sizes)
    elif requested:
        more = _axes_that_grow(task, example, leaves, program.mesh)
        layout = dataclasses.replace(
            layout, batch_axes=tuple(dict.fromkeys((*layout.batch_axes, *more)))
        )
    hidden = not sizes and any(isinstance(x, jax.core.Tracer) for x in leaves.params)
    others = {axis: size for axis, size in sizes.items() if axis not in layout.batch_axes}
    # Inside jit on Auto axes, the mesh may be unknown.
    pieces = min(jax.device_count(), MOST_PIECES) if hidden else math.prod(others.values())
    layout = dataclasses.replace(layout, pieces=pieces)
    return layout, math.prod(sizes.get(axis, 1) for axis in layout.batch_axes)


def _axes_that_grow(
    task: Task, example: ExampleFunction, leaves: Leaves, mesh: AbstractMesh | None
) -> tuple[str, ...]:
    """The axes that the gradient's constraints name on dimensions that grow with the batch."""

    def gradient(leaves: Leaves) -> Any:
        if not task.gradient:
            return example(leaves)[0]
        return jax.grad(lambda params: example(leaves._replace(params=params))[0])(leaves.params)

    try:
        once, twice = (
            trace(gradient, example.types(leaves, mesh, times), mesh) for times in (1, 2)
        )
    except Exception:
        return ()  # the function accepts only one example
    return axes.axes_of_constraints(once.jaxpr, twice.jaxpr)


def check_divides(size: int, microbatch_size: int | None, layout: MeshLayout, spread: int) -> None:
    """Raises unless the batch splits evenly into microbatches and over the mesh."""
    if microbatch_size is not None:
        whole_number("microbatch_size", microbatch_size)
        if size > microbatch_size and size % microbatch_size:
            raise PadBatchError(
                f"a batch of {size} examples does not split into microbatches of "
                f"{microbatch_size}. Pad it to {-(-size // microbatch_size) * microbatch_size} "
                "rows and mark the added rows in is_padding_example."
            )
    piece = min(size, microbatch_size or size)
    if piece % spread:
        what = "microbatches" if piece < size else "a batch"
        raise PadBatchError(
            f"{what} of {piece} examples cannot be split into {spread} equal shards over the mesh "
            f"axes {layout.batch_axes}, which carry the batch. Pad to a multiple of {spread}, for "
            f"instance {-(-piece // spread) * spread}, and mark the added rows in "
            "is_padding_example."
        )


def refuse_collectives(program: ClosedJaxpr, layout: MeshLayout) -> None:
    """Raises if a program communicates over an axis that carries other examples.

    Those are the batch axes of an enclosing shard_map and the axes of an enclosing `vmap`. Then no
    per-example gradient exists. Without `check_vma=True`, JAX does not track which values shards
    share, so every collective is refused. The axes of shard_maps inside the program are allowed.
    """
    if not any(map(named_axes, list(axes.equations_in(program.jaxpr)))):
        return
    allowed: set[str] = set()
    if layout.manual and types.types_track_varying_axes():
        allowed = set(types.manual_axes()) - set(layout.batch_axes)
    pending: list[tuple[Jaxpr, frozenset[str]]] = [(program.jaxpr, frozenset(allowed))]
    while pending:
        jaxpr, allowed_axes = pending.pop()
        for eqn in jaxpr.eqns:
            own = frozenset(eqn.params.get("newly_manual_axes", ()))
            pending += [(inner, allowed_axes | own) for inner in axes.subprograms(eqn.params)]
            refused = named_axes(eqn) - allowed_axes
            if refused and eqn.primitive.name not in SILENT:
                raise MoveCollectiveError(
                    f"the loss calls {eqn.primitive.name} over the axes {sorted(refused)}, which "
                    "carry other examples (or may, with check_vma=False), so it mixes the examples "
                    "of different shards. Move it out of the loss, and use check_vma=True for axes "
                    "that split the model. To sum over shards, pass reduce_axes to clipped_grad."
                )


def named_axes(eqn: JaxprEqn) -> set[str]:
    """The mesh and `vmap` axes that an equation names."""
    named = eqn.params.get("axes", eqn.params.get("axis_name", ()))
    named = named if isinstance(named, tuple) else (named,)
    return {name for name in named if isinstance(name, str)}


def check_loss_is_shared(loss: Any, layout: MeshLayout) -> None:
    """Raises if the loss of one example differs along a manual axis that does not carry the batch.

    Autodiff would add the gradients of those different losses before a norm is computed.
    """
    differing = sorted(types.varying_axes(loss) - set(layout.batch_axes)) if layout.manual else []
    if differing:
        raise FixArgumentsError(
            f"inside shard_map, the loss of one example differs along mesh axes {differing}. If "
            "they carry the batch, name them in batch_axes. If they split the model or a sequence, "
            "reduce over them in the loss with jax.lax.psum or pmean."
        )


def example_keys(key: Any, size: int, layout: MeshLayout, task: Task) -> jax.Array:
    """One key per example, folded from the example's index in the global batch."""
    index = jnp.arange(size, dtype=jnp.uint32)
    if layout.manual:
        if not layout.batch_axes or (task.batch_axes is None and len(layout.batch_axes) > 1):
            raise FixArgumentsError(
                "prng_argnum inside shard_map needs the index of each example in the global batch. "
                "Pass batch_axes=(...), the manual axes that the batch is split over, in the order "
                "of its PartitionSpec."
            )
        shard = jax.lax.axis_index(layout.batch_axes).astype(jnp.uint32)
        index = index + shard * jnp.uint32(size)
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, index)


def in_auto_axes(
    compute: Callable[..., tuple[list[Any], list[Any]]],
    layout: MeshLayout,
    like: Sequence[Any],
    rows: int,
    arrays: tuple[Any, ...],
) -> tuple[list[Any], list[Any]]:
    """Runs `compute` with the Explicit axes as Auto axes, and gives the results Explicit types.

    Sums get the spec of the parameters `like`, or are replicated where that is None. The `rows`
    per-example outputs get the spec of the batch.
    """
    mesh: Any = layout.explicit_mesh
    explicit = types.explicit_axes(mesh)
    shardings = [None if x is None else types.explicit_sharding(x) for x in like]
    by_param = [PartitionSpec() if s is None else s.spec for s in shardings]
    batch_axes = tuple(axis for axis in layout.batch_axes if axis in explicit)
    by_row = [PartitionSpec(batch_axes or None)] * rows
    auto = jax.sharding.auto_axes(compute, axes=explicit, out_sharding=(by_param, by_row))
    with jax.sharding.use_abstract_mesh(mesh):
        return auto(*arrays)
