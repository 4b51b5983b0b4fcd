"""One clipped sum in six steps: trace, tap, differentiate, batch, norms, accumulate.

`plan_call` takes the first three and computes nothing. `clipped_sum` runs the plan.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr

from bevel.clipping.accumulate.bounded_sums import BoundedSums
from bevel.clipping.accumulate.clip_groups import group_by_clip_norm
from bevel.clipping.accumulate.low_memory import SumsAndNorms, recomputed_sums
from bevel.clipping.accumulate.microbatches import in_microbatches
from bevel.clipping.accumulate.second_pass import SecondPass
from bevel.clipping.accumulate.sums import (
    RecomputedSums,
    clip_and_sum,
    finish,
    sharded_like_params,
)
from bevel.clipping.arguments import Call, Leaves, batch_size
from bevel.clipping.bounded import Aux, TracedProgram
from bevel.clipping.coupled_examples import coupling_of, warn_once
from bevel.clipping.memory import plan_within_memory
from bevel.clipping.norms import Norm
from bevel.clipping.options import Task
from bevel.clipping.plan import (
    ClipPlan,
    ExampleOutputs,
    choose_norms,
    differentiated,
    tap_parameters,
)
from bevel.clipping.program.batching import over_examples
from bevel.clipping.program.example_rows import ExampleRows
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
    check_scalar_loss,
    explained_batching,
    trace,
    trace_gradient,
    trace_loss,
)
from bevel.sharding.axes import ArgumentShardings
from bevel.sharding.types import zeros_of_type

# run(consts, params, (batch, keys), constants)
Runner = Callable[[Sequence[Any], Any, Any, Any], ExampleOutputs]


def plan_call(
    task: Task, call: Call, leaves: Leaves, shardings: ArgumentShardings
) -> tuple[ClipPlan, Leaves]:
    """The plan of a call, and its arguments, typed as differentiation on this mesh needs."""
    function = ExampleFunction(task.fun, call, task.has_aux, task.keep_batch_dim)
    layout, leaves = on_mesh(task, leaves, shardings)

    # 1. Trace one example.
    loss, arguments = trace_loss(function, leaves, layout)
    refuse_collectives(loss.jaxpr, layout)
    value, aux = jax.tree.unflatten(loss.out_tree, loss.jaxpr.out_avals)
    if task.gradient:
        check_scalar_loss(value)
        check_loss_is_shared(value, layout)

    def planned(mode: str) -> ClipPlan:
        # 2. Tap it: find the uses of each parameter, and choose how its norm is computed.
        choices = choose_norms(task, loss, arguments, layout, call.param_paths, mode)
        taps, boundaries = tap_parameters(choices, loss, arguments, mode)

        # 3. Differentiate with respect to the taps.
        example, readings = differentiated(task, function, loss, taps, boundaries, layout, mode)
        gradient = trace_gradient(example, arguments, loss, call)
        refuse_collectives(gradient.jaxpr, layout)

        batched, pieces = batch_layout(task, layout, function, leaves, gradient)
        outputs = jax.tree.unflatten(gradient.out_tree, gradient.jaxpr.out_avals)
        like_params = task.gradient and task.transform is None
        out_tree = call.result if like_params else jax.tree.structure(outputs.contribution)
        return ClipPlan(
            layout=batched,
            batch_pieces=pieces,
            loss=loss,
            arguments=arguments,
            choices=choices,
            taps=taps,
            boundaries=boundaries,
            readings=readings,
            example=example,
            gradient=gradient,
            out_tree=out_tree,
            aux_tree=jax.tree.structure(aux),
            like_params=like_params,
            groups=group_by_clip_norm(task.clip, out_tree),
        )

    return plan_within_memory(task, loss, layout, leaves, planned), leaves


def clipped_sum(
    task: Task,
    call: Call,
    leaves: Leaves,
    padding: Any,
    shardings: ArgumentShardings,
    known: TracedProgram,
) -> Any:
    """The clipped sum of a call, with the per-example outputs that were requested."""
    leaves = Leaves(*([jnp.asarray(x) for x in group] for group in leaves))
    size = batch_size(leaves.batch, padding)
    plan, leaves = plan_call(task, call, leaves, shardings)
    piece = plan.memory.microbatch_size
    check_divides(size, piece, plan.layout, plan.batch_pieces)
    known.loss = plan.loss.jaxpr
    known.coupling = coupling_of(task, call, leaves, plan.loss)
    warn_once(task.fun, known.coupling)
    known.enters_with(plan.rows_per_example)
    run = _batched(task, plan)

    def compute(
        params: Any, constants: Any, consts: Any, batch: Any, keys: Any, padding: Any
    ) -> tuple[list[Any], list[Any]]:
        def microbatch(batch: Any, keys: Any, padding: Any) -> tuple[list[Any], list[Any]]:
            if task.keep_batch_dim:
                # A reshape: through a broadcast, the compiler would propagate shardings last.
                batch = [x.reshape(x.shape[0], 1, *x.shape[1:]) for x in batch]
            # 4. Batch.
            with explained_batching():
                outputs = run(consts, params, (batch, keys), constants)
            # 5. Norms, and 6. accumulate.
            values = Leaves(params, batch, keys, constants)
            second_pass = _recomputed(plan, values, outputs)
            return clip_and_sum(task, plan, outputs, params, padding, second_pass)

        def sharded(sums: list[Any]) -> list[Any]:
            return sharded_like_params(plan, sums, params)

        sums, rows = in_microbatches(microbatch, size, piece, batch, keys, padding, sharded)
        return finish(task, plan, sums, params), rows

    keys = [example_keys(key, size, plan.layout, task) for key in leaves.keys]
    consts = plan.gradient.jaxpr.consts
    arrays = (leaves.params, leaves.constants, consts, leaves.batch, keys, padding)
    if size == 0:
        sums, rows = _empty(compute, arrays)
    elif plan.layout.explicit_mesh is not None and task.speed.engine == "auto":
        like = leaves.params if plan.like_params else [None] * plan.out_tree.num_leaves
        requested = [task.return_values, task.return_norms]
        count = sum(requested) + (plan.aux_tree.num_leaves if task.has_aux else 0)
        sums, rows = in_auto_axes(compute, plan.layout, like, count, arrays)
    else:
        sums, rows = compute(*arrays)
    result = jax.tree.unflatten(plan.out_tree, sums)
    if not (task.has_aux or task.return_values or task.return_norms):
        return result
    values = rows.pop(0) if task.return_values else None
    norms = rows.pop(0) if task.return_norms else None
    aux = jax.tree.unflatten(plan.aux_tree, rows) if task.has_aux else None
    return result, Aux(values, norms, aux)


def _batched(task: Task, plan: ClipPlan) -> Runner:
    """`run(consts, params, (batch, keys), constants)`: the plan's program for every example."""
    if task.speed.engine == "vmap":

        def plain(consts: Any, params: Any, examples: Any, constants: Any) -> ExampleOutputs:
            del consts
            batch, keys = examples
            leaves = Leaves(params, batch, keys, constants)
            here = trace(plan.example, leaves, to_batch=True)
            flat = jax.core.eval_jaxpr(here.jaxpr.jaxpr, here.jaxpr.consts, *leaves.flat())
            return jax.tree.unflatten(here.out_tree, flat)

        return jax.vmap(plain, in_axes=(None, None, 0, None))
    batched = over_examples(plan.gradient.jaxpr, plan.layout)

    def run(consts: Any, params: Any, examples: Any, constants: Any) -> ExampleOutputs:
        batch, keys = examples
        flat = batched(consts, params, [*batch, *keys], constants)
        return jax.tree.unflatten(plan.gradient.out_tree, flat)

    return run


def _recomputed(plan: ClipPlan, values: Leaves, outputs: ExampleOutputs) -> RecomputedSums:
    """The sums of the taps whose values a second pass computes again."""
    taps = [tap for tap in plan.taps if tap.recompute]
    groups = {tap.param: plan.groups.of_leaf[tap.param] for tap in taps}
    uses = [(use, tap.way, groups[tap.param]) for tap in taps for use in tap.uses]
    inside = {
        boundary.path: [use for use in uses if boundary.contains(use[0].path)]
        for boundary in plan.boundaries
    }
    held = dict(zip(plan.readings, outputs.readings, strict=True)) if inside else {}

    def again(arrays: Any, factors: list[Any], keep: Any) -> SumsAndNorms:
        consts, values, held = arrays
        jaxpr = ClosedJaxpr(plan.loss.jaxpr.jaxpr, consts)
        loss = dataclasses.replace(plan.loss, jaxpr=jaxpr)
        if not inside:
            run = recomputed_sums(loss, plan.arguments, taps, list(groups.values()), plan.layout)
            return run(values, factors, keep)
        boundaries = {boundary.path: boundary for boundary in plan.boundaries}
        numbers = ExampleRows.numbers(values.batch, plan.layout)
        second_pass = SecondPass(
            loss, plan.layout, boundaries, inside, values.params, factors, keep, numbers
        )
        return second_pass.sums(values, dict(zip(inside, held, strict=True)))

    def sums(factors: list[Any], keep: Any, norms: Mapping[int, Norm]) -> dict[int, Any]:
        if not taps:
            return {}
        keep = jnp.ones_like(factors[0], bool) if keep is None else keep
        arrays = (plan.loss.jaxpr.consts, values, [held[path] for path in inside])
        bounded = BoundedSums(again, groups, plan.layout.batch_axes)
        return bounded.sums(arrays, factors, keep, norms)

    return sums


def _empty(compute: Callable[..., Any], arrays: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
    """The result for a batch of size 0: zeros, and per-example outputs of length 0."""
    params, constants, consts, batch, keys, padding = arrays

    def one_row(x: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype)

    padding = None if padding is None else jax.ShapeDtypeStruct((1,), np.dtype(bool))
    rows = jax.tree.map(one_row, (batch, keys))
    sums, outputs = jax.eval_shape(compute, params, constants, consts, *rows, padding)
    empty = [jnp.zeros((0, *x.shape[1:]), x.dtype) for x in outputs]
    return [zeros_of_type(x) for x in sums], empty
