"""One clipped sum: trace one example, tap, differentiate, batch, norms, combine."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bevel.clipping.accumulate.low_memory import ReadNorm, can_do_again, sums_again
from bevel.clipping.accumulate.microbatches import in_microbatches
from bevel.clipping.accumulate.sums import (
    ExampleOutputs,
    Shares,
    combine,
    finish,
    group_by_clip_norm,
)
from bevel.clipping.arguments import Call, Leaves, batch_size
from bevel.clipping.bounded import Aux, TracedProgram
from bevel.clipping.choose import choose, tapped_of
from bevel.clipping.options import Task
from bevel.clipping.program.batching import over_examples
from bevel.clipping.program.meshes import (
    batch_layout,
    check_divides,
    check_loss_is_shared,
    example_keys,
    in_auto_axes,
    on_mesh,
    refuse_collectives,
)
from bevel.clipping.program.trace import (
    ExampleFunction,
    TracedExample,
    check_scalar_loss,
    explained_batching,
    trace,
    trace_gradient,
    trace_loss,
)
from bevel.clipping.uses.find import find_uses, without_common
from bevel.clipping.uses.taps import HoldValues, TappedParameter, TapReading, differentiate
from bevel.sharding.axes import ArgumentShardings, MeshLayout
from bevel.sharding.types import zeros_of_type

Runner = Callable[[Sequence[Any], Any, Any, Any], ExampleOutputs]


def clipped_sum(
    task: Task,
    call: Call,
    leaves: Leaves,
    padding: Any,
    seen: ArgumentShardings,
    known: TracedProgram,
) -> Any:
    """The clipped sum of a call, with its per-example outputs where asked for."""
    leaves = Leaves(*([jnp.asarray(x) for x in group] for group in leaves))
    size = batch_size(leaves.batch, padding)
    example = ExampleFunction(task.fun, call, task.has_aux, task.keep_batch_dim)
    layout, leaves = on_mesh(task, leaves, seen)
    loss, arguments = trace_loss(example, leaves, layout)
    known.loss = loss.jaxpr
    program, one, shares = _share_out(task, example, arguments, loss, layout)
    layout, spread = batch_layout(task, layout, example, leaves, program)
    check_divides(size, task.microbatch_size, layout, spread)
    known.enters_with(max((tap.rows for tap in shares.taps), default=1))
    run = _runner(task, one, program, layout)

    def compute(
        params: Any, constants: Any, consts: Any, batch: Any, keys: Any, padding: Any
    ) -> tuple[list[Any], list[Any]]:
        def chunk(batch: Any, keys: Any, padding: Any) -> tuple[list[Any], list[Any]]:
            if task.keep_batch_dim:
                batch = [jnp.expand_dims(x, 1) for x in batch]
            with explained_batching():
                outputs = run(consts, params, (batch, keys), constants)

            def again(factors: list[Any], keep: Any) -> dict[int, Any]:
                taps = [tap for tap in shares.taps if tap.again]
                if not taps:
                    return {}
                groups = [shares.groups.of_leaf[tap.param] for tap in taps]
                sums = sums_again(loss, arguments, taps, groups, layout)
                return sums(Leaves(params, batch, keys, constants), factors, keep)

            return combine(task, shares, layout, outputs, params, padding, again)

        sums, rows = in_microbatches(chunk, size, task.microbatch_size, batch, keys, padding)
        return finish(task, shares, layout, sums, params), rows

    keys = [example_keys(key, size, layout, task) for key in leaves.keys]
    arrays = (leaves.params, leaves.constants, program.jaxpr.consts, leaves.batch, keys, padding)
    if size == 0:
        sums, rows = _nothing(compute, arrays)
    elif layout.explicit_mesh is not None and task.engine == "auto":
        like = leaves.params if shares.like_params else [None] * shares.out_tree.num_leaves
        asked = [task.return_values, task.return_norms]
        count = sum(asked) + (shares.aux_tree.num_leaves if task.has_aux else 0)
        sums, rows = in_auto_axes(compute, layout, like, count, arrays)
    else:
        sums, rows = compute(*arrays)
    result = jax.tree.unflatten(shares.out_tree, sums)
    if not (task.has_aux or task.return_values or task.return_norms):
        return result
    values = rows.pop(0) if task.return_values else None
    norms = rows.pop(0) if task.return_norms else None
    aux = jax.tree.unflatten(shares.aux_tree, rows) if task.has_aux else None
    return result, Aux(values, norms, aux)


def _share_out(
    task: Task, example: ExampleFunction, arguments: Leaves, loss: TracedExample, layout: MeshLayout
) -> tuple[TracedExample, Callable[[Leaves], ExampleOutputs], Shares]:
    """The differentiated program of one example, and how its outputs make up the result."""
    refuse_collectives(loss.jaxpr, layout)
    count = len(arguments.params)
    like_params = task.gradient and task.transform is None
    whole = not like_params or task.clip.grid_scale is not None or task.engine == "vmap"
    taps = []
    if not whole:
        found = find_uses(loss.jaxpr, count, len(arguments.constants))
        if layout.manual or layout.explicit_mesh is not None:
            found = without_common(found)
        chosen = choose(found, arguments.params, task.norms, example.call.param_paths)
        made = [tapped_of(c, arguments.params[c.param]) for c in chosen]
        taps = [
            dataclasses.replace(tap, again=low_memory(task, tap, layout))
            for tap in made
            if tap is not None
        ]
    # One equation is read once, whatever number of parameters it is a use of.
    reads = {
        use.path: (use, ReadNorm(tap.way) if tap.again else HoldValues())
        for tap in taps
        for use in tap.uses
    }
    common = list(dict.fromkeys(c for tap in taps for c in tap.common))
    tapped = {tap.param for tap in taps}
    others = [i for i in range(count) if i not in tapped]
    value, aux = jax.tree.unflatten(loss.out_tree, loss.jaxpr.out_avals)
    if task.gradient:
        check_scalar_loss(value)
        check_loss_is_shared(value, layout)

    def one(leaves: Leaves) -> ExampleOutputs:
        if not task.gradient:
            value, aux = example(leaves)
            return ExampleOutputs(None, jax.tree.leaves(aux), value, [])
        if task.engine == "vmap":
            loss_of = lambda params: example(leaves._replace(params=params))  # noqa: E731
            (value, aux), kept = jax.value_and_grad(loss_of, has_aux=True)(leaves.params)
            readings = list[TapReading]()
        else:
            flat, kept, readings = differentiate(
                loss.jaxpr, list(reads.values()), others, leaves.flat(), common
            )
            value, aux = jax.tree.unflatten(loss.out_tree, flat)
        contribution: Any = kept
        if task.transform is not None:
            # In the dtypes of the parameters, as jax.grad has them.
            pairs = zip(kept, leaves.params, strict=True)
            whole = [gradient.astype(param.dtype) for gradient, param in pairs]
            contribution = task.transform(jax.tree.unflatten(example.call.result, whole))
        return ExampleOutputs(value, jax.tree.leaves(aux), contribution, readings)

    program = trace_gradient(one, arguments, loss, example.call)
    refuse_collectives(program.jaxpr, layout)
    outputs = jax.tree.unflatten(program.out_tree, program.jaxpr.out_avals)
    out_tree = example.call.result if like_params else jax.tree.structure(outputs.contribution)
    shares = Shares(
        taps=taps,
        reads=[*reads, *common],
        program=loss.jaxpr,
        kept=[i for i in range(out_tree.num_leaves) if i not in tapped],
        out_tree=out_tree,
        aux_tree=jax.tree.structure(aux),
        like_params=like_params,
        groups=group_by_clip_norm(task.clip, out_tree),
    )
    return program, one, shares


def low_memory(task: Task, tap: TappedParameter, layout: MeshLayout) -> bool:
    """Whether a tap is read twice: where asked, or within a remat, which holding would undo."""
    inside = any(use.recomputed for use in tap.uses)
    wanted = inside if task.memory == "auto" else task.memory == "low"
    return tap.way != "form" and wanted and can_do_again(tap) and layout.explicit_mesh is None


def _runner(
    task: Task, one: Callable[[Leaves], ExampleOutputs], program: TracedExample, layout: MeshLayout
) -> Runner:
    """`run(consts, params, (batch, keys), constants)`: every example at once."""
    if task.engine == "vmap":

        def plain(consts: Any, params: Any, examples: Any, constants: Any) -> ExampleOutputs:
            del consts
            batch, keys = examples
            leaves = Leaves(params, batch, keys, constants)
            here = trace(one, leaves, to_batch=True)
            flat = jax.core.eval_jaxpr(here.jaxpr.jaxpr, here.jaxpr.consts, *leaves.flat())
            return jax.tree.unflatten(here.out_tree, flat)

        return jax.vmap(plain, in_axes=(None, None, 0, None))
    batched = over_examples(program.jaxpr, layout)

    def run(consts: Any, params: Any, examples: Any, constants: Any) -> ExampleOutputs:
        batch, keys = examples
        flat = batched(consts, params, [*batch, *keys], constants)
        return jax.tree.unflatten(program.out_tree, flat)

    return run


def _nothing(compute: Callable[..., Any], arrays: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
    """The result for a batch of size 0: zeros, and per-example outputs of length 0."""
    params, constants, consts, batch, keys, padding = arrays

    def one_row(x: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype)

    padding = None if padding is None else jax.ShapeDtypeStruct((1,), np.dtype(bool))
    rows = jax.tree.map(one_row, (batch, keys))
    sums, outputs = jax.eval_shape(compute, params, constants, consts, *rows, padding)
    empty = [jnp.zeros((0, *x.shape[1:]), x.dtype) for x in outputs]
    return [zeros_of_type(x) for x in sums], empty
