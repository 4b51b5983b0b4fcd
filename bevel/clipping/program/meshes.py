"""How a call meets the mesh: Auto axes, Explicit axes, or inside `shard_map`."""

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


# In which the values of one example are cut for their norms, where the mesh is not known.
MOST_PIECES = 8


def on_mesh(task: Task, leaves: Leaves, seen: ArgumentShardings) -> tuple[MeshLayout, Leaves]:
    """The kind of mesh, and the arguments as they must be differentiated there.

    Inside shard_map, autodiff sums the gradient of a parameter that the shards share over those
    shards, before any norm could be taken. Parameters that are typed as varying are not summed.
    """
    manual = types.manual_axes()
    unknown = [axis for axis in task.reduce_axes if axis not in manual]
    if unknown:
        raise FixArgumentsError(
            f"reduce_axes names {unknown[0]!r}, which is no manual axis here (those are {manual}). "
            "reduce_axes is for calls inside jax.shard_map; elsewhere the sum is global already."
        )
    if not manual:
        mesh = types.explicit_mesh(leaf for group in leaves for leaf in group)
        found = (*seen.batch_axes, *axes.axes_of_arguments(leaves.batch))
        declared = tuple(dict.fromkeys(found)) if task.batch_axes is None else task.batch_axes
        return MeshLayout(declared, mesh, params=seen.params), leaves
    if task.batch_axes is None:
        varying = frozenset[str]().union(*map(types.varying_axes, leaves.batch))
        found = tuple(axis for axis in manual if axis in varying)
    else:
        found = task.batch_axes
        axes.check_declared(found, dict.fromkeys(manual, 1))
    if types.types_track_varying_axes():
        params, keys = (
            [types.as_varying(x, found) for x in xs] for xs in (leaves.params, leaves.keys)
        )
        leaves = leaves._replace(params=params, keys=keys)
    else:
        found = _untyped_batch_axes(task, manual)
    return MeshLayout(found, manual=True), leaves


def _untyped_batch_axes(task: Task, manual: tuple[str, ...]) -> tuple[str, ...]:
    """The batch axes where types say nothing: all manual ones, or it is not known what shards hold.

    A parameter that is split over another axis would be clipped piece by piece.
    """
    sizes = {axis: jax.lax.axis_size(axis) for axis in manual}
    split = [axis for axis in manual if sizes[axis] > 1]
    declared = task.batch_axes if task.batch_axes is not None else split
    if (len(split) > 1 and task.batch_axes is None) or not set(split) <= set(declared):
        raise FixArgumentsError(
            f"inside shard_map over {manual} with check_vma=False, JAX does not say which values "
            "shards share, so a parameter split over one axis would be clipped piece by piece. "
            "Use check_vma=True, or name all axes in batch_axes if each carries the batch."
        )
    return tuple(declared)


def batch_layout(
    task: Task, layout: MeshLayout, example: ExampleFunction, leaves: Leaves, program: TracedExample
) -> tuple[MeshLayout, int]:
    """The layout with its batch axes, and the number of pieces they cut the batch into.

    Axes come from the caller, from the arguments' shardings, and from constraints in the function
    or its backward pass: an axis that a constraint puts on a dimension that grows with the batch
    carries the batch.
    """
    if layout.manual:
        return layout, 1
    asked = axes.constraints(program.jaxpr.jaxpr)
    concrete = [x.sharding for group in leaves for x in group if not isinstance(x, jax.core.Tracer)]
    shardings = [s for s in (*concrete, *layout.params) if isinstance(s, NamedSharding)]
    sizes = axes.mesh_sizes((*shardings, *(s for s, _ in asked)), layout.explicit_mesh)
    if task.batch_axes is not None:
        axes.check_declared(task.batch_axes, sizes)
    elif asked:
        more = _axes_that_grow(task, example, leaves, program.mesh)
        layout = dataclasses.replace(
            layout, batch_axes=tuple(dict.fromkeys((*layout.batch_axes, *more)))
        )
    hidden = not sizes and any(isinstance(x, jax.core.Tracer) for x in leaves.params)
    others = {axis: size for axis, size in sizes.items() if axis not in layout.batch_axes}
    # Inside jit on Auto axes nothing may be known of the mesh.
    pieces = min(jax.device_count(), MOST_PIECES) if hidden else math.prod(others.values())
    layout = dataclasses.replace(layout, pieces=pieces)
    return layout, math.prod(sizes.get(axis, 1) for axis in layout.batch_axes)


def _axes_that_grow(
    task: Task, example: ExampleFunction, leaves: Leaves, mesh: AbstractMesh | None
) -> tuple[str, ...]:
    """The axes that the gradient's constraints put on dimensions that grow with the batch."""

    def gradient(leaves: Leaves) -> Any:
        if not task.gradient:
            return example(leaves)[0]
        return jax.grad(lambda params: example(leaves._replace(params=params))[0])(leaves.params)

    try:
        once, twice = (
            trace(gradient, example.types(leaves, mesh, times), mesh) for times in (1, 2)
        )
    except Exception:
        return ()  # the function takes one example only: there is nothing to learn
    return axes.axes_of_constraints(once.jaxpr, twice.jaxpr)


def check_divides(size: int, microbatch_size: int | None, layout: MeshLayout, spread: int) -> None:
    """Raises unless the batch splits into microbatches and over the mesh without a rest."""
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
            f"{what} of {piece} examples cannot be cut into {spread} equal pieces, one for each "
            f"place along the mesh axes {layout.batch_axes} that carry the batch. Use a multiple "
            f"of {spread}, for instance {-(-piece // spread) * spread}: pad, and mark the added "
            "rows in is_padding_example."
        )


def refuse_collectives(program: ClosedJaxpr, layout: MeshLayout) -> None:
    """Raises if a program communicates over an axis whose other places hold other examples.

    Those are the batch axes of an enclosing shard_map and the axes of an enclosing `vmap`: no
    per-example gradient exists then. Without `check_vma=True`, JAX does not say which values
    shards share, and every collective is refused. Axes of shard_maps in the program are its own.
    """
    allowed: set[str] = set()
    if layout.manual and types.types_track_varying_axes():
        allowed = set(types.manual_axes()) - set(layout.batch_axes)
    pending: list[tuple[Jaxpr, frozenset[str]]] = [(program.jaxpr, frozenset(allowed))]
    while pending:
        jaxpr, free = pending.pop()
        for eqn in jaxpr.eqns:
            own = frozenset(eqn.params.get("newly_manual_axes", ()))
            pending += [(inner, free | own) for inner in axes.subprograms(eqn.params)]
            strange = named_axes(eqn) - free
            if strange and eqn.primitive.name not in SILENT:
                raise MoveCollectiveError(
                    f"the loss calls {eqn.primitive.name} over the axes {sorted(strange)}, which "
                    "carry other examples (or, with check_vma=False, may do so), so this mixes the "
                    "examples of different places. Move it out of the loss, and use check_vma=True "
                    "for axes that split the model. To sum the clipped gradient over shards, pass "
                    "reduce_axes=(...) to clipped_grad."
                )


def named_axes(eqn: JaxprEqn) -> set[str]:
    """The named axes that an equation communicates over, or is silent about."""
    named = eqn.params.get("axes", eqn.params.get("axis_name", ()))
    named = named if isinstance(named, tuple) else (named,)
    return {name for name in named if isinstance(name, str)}


def check_loss_is_shared(loss: Any, layout: MeshLayout) -> None:
    """Raises if the loss of one example differs along a manual axis that does not carry the batch.

    Autodiff would add the gradients of those different losses before any norm is taken.
    """
    strange = sorted(types.varying_axes(loss) - set(layout.batch_axes)) if layout.manual else []
    if strange:
        raise FixArgumentsError(
            f"inside shard_map, the loss of one example differs along mesh axes {strange}. If they "
            "carry the batch, name them in batch_axes; if they split the model or a sequence, "
            "reduce over them in the loss, with jax.lax.psum or pmean."
        )


def example_keys(key: Any, size: int, layout: MeshLayout, task: Task) -> jax.Array:
    """One key per example, folded from the example's index in the global batch."""
    index = jnp.arange(size, dtype=jnp.uint32)
    if layout.manual:
        if not layout.batch_axes or (task.batch_axes is None and len(layout.batch_axes) > 1):
            raise FixArgumentsError(
                "prng_argnum inside shard_map needs the index of each example in the whole batch: "
                "pass batch_axes=(...), the manual axes that the batch is split over, in the order "
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
    """Runs `compute` with the Explicit axes as Auto ones; results are typed again as they leave.

    Sums get the spec of the parameters `like` (None: replicated), the `rows` per-example outputs
    that of the batch.
    """
    mesh: Any = layout.explicit_mesh
    explicit = types.explicit_axes(mesh)
    shardings = [None if x is None else types.explicit_sharding(x) for x in like]
    by_param = [PartitionSpec() if s is None else s.spec for s in shardings]
    carried = tuple(axis for axis in layout.batch_axes if axis in explicit)
    by_row = [PartitionSpec(carried or None)] * rows
    auto = jax.sharding.auto_axes(compute, axes=explicit, out_sharding=(by_param, by_row))
    with jax.sharding.use_abstract_mesh(mesh):
        return auto(*arrays)
