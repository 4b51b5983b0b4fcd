"""`clipped_grad` and `clipped_fun`: the sum over a batch of per-example clipped contributions."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np

from bevel.checks import function, instance, text, without_mask
from bevel.clipping.arguments import ByIdentity, CallSplitter
from bevel.clipping.bounded import BoundedSensitivityCallable, TracedProgram, checked_dtype
from bevel.clipping.engine import clipped_sum
from bevel.clipping.options import Clip, PyTree, SpeedOptions, Task, check_positions
from bevel.sharding.axes import ArgumentShardings

Axes = str | Sequence[str] | None


def _identity(tree: PyTree) -> PyTree:
    """The default of `pre_clipping_transform`."""
    return tree


def clipped_grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    *,
    # These change the privacy guarantee.
    l2_clip_norm: float | PyTree,
    rescale_to_unit_norm: bool = False,
    normalize_by: float = 1.0,
    automatic_gamma: float | None = None,
    pre_clipping_transform: Callable[[PyTree], PyTree] = _identity,
    grid_scale: int | None = None,
    nan_safe: bool = True,
    keep_batch_dim: bool = True,
    # These change the arguments and outputs.
    batch_argnums: int | Sequence[int] = 1,
    prng_argnum: int | None = None,
    return_values: bool = False,
    return_grad_norms: bool = False,
    dtype: jax.typing.DTypeLike | None = None,
    # These change speed and memory only.
    microbatch_size: int | None = None,
    engine: Literal["auto", "vmap"] = "auto",
    norms: str | Mapping[str, str] = "auto",
    memory: Literal["auto", "bookkeeping", "microbatches", "boundaries", "low"]
    | int
    | float = "auto",
    speed: SpeedOptions | None = None,
    # These say where the examples are on the mesh.
    batch_axes: Axes = None,
    reduce_axes: Axes = None,
    spmd_axis_name: str | None = None,
) -> BoundedSensitivityCallable:
    """The gradient of a loss, clipped per example and summed over the batch.

    The result equals `sum_i clip(jax.grad(fun)(params, batch[i:i+1]))`, whatever `fun` computes for
    a whole batch: a loss that couples examples (batch normalisation) is evaluated on one example at
    a time, with a warning. Operations that would see other examples when they are batched
    (callbacks, rules of `custom_vmap`, primitives of your own) run one example at a time or are
    refused; docs/clipping.md lists them. Clipped contributions are smaller by the slack that covers
    rounding (`bevel.precision`).

    `fun` may contain sharding constraints, jit, scan, cond, remat and custom rules, on any mesh. As
    with `jax.jit`, Python values that it closes over are read when it is traced, not at each call.

    These options change the privacy guarantee:
      l2_clip_norm: one number, or a tree of numbers that is a prefix of the parameters, in which
        case each subtree is clipped by itself. May be traced with `rescale_to_unit_norm=True`.
      rescale_to_unit_norm: divide by the clip norm, so that the bound is 1 (per group).
      normalize_by: divide the sum by this, usually the expected batch size.
      automatic_gamma: scale by `l2_clip_norm / (norm + gamma)` instead of clipping (AUTO-S).
      pre_clipping_transform: applied to each example's gradient; the norm is that of the result.
      grid_scale: round contributions to multiples of l2_clip_norm / grid_scale, and sum them as
        int64, exactly. The integers of one example have L2 norm at most grid_scale.
      nan_safe: examples with a non-finite gradient contribute zero.
      keep_batch_dim: True passes `fun` one example with a batch dimension of size 1. False removes
        that dimension; with data of shape (users, examples, ...) this clips per user.

    These change the arguments and outputs:
      argnums, has_aux: as in `jax.grad`.
      batch_argnums: arguments that are split into examples; trees of arrays with one leading size.
      prng_argnum: an argument that is a key; example i gets it folded with i.
      return_values, return_grad_norms: return `(grad, Aux(values, grad_norms, aux))`.
      dtype: of the result. The sum itself is always accumulated in float32 or wider.

    These change speed and memory only. `speed=SpeedOptions(...)` takes all of them together:
      microbatch_size: process this many examples at a time, and skip pieces that are all padding.
      engine: 'auto', or 'vmap' for the plain `jax.vmap(jax.grad(fun))`, kept as a reference.
      norms: how norms are computed: 'outer', 'gram', 'product', 'form' or 'keep' wherever that is
        possible, or a dict from paths of parameters (or parts of them) to one of these.
        `bevel.explain` shows what is chosen, what else is possible, and what each way costs.
      memory: how memory is bounded where the loss has a `jax.checkpoint`. 'bookkeeping' holds the
        values of all taps; 'microbatches' does so too and splits the batch to fit the memory of
        `jax.grad`; 'boundaries' holds only the inputs and cotangents of the checkpoints and
        recomputes the rest; 'low' holds nothing and takes a second backward pass. 'auto' takes the
        cheapest that fits by an estimate from shapes. An int is a limit on temporary bytes per
        device, a float one in multiples of the temporaries of `jax.grad`; both may split the batch.

    These say where the examples are on the mesh:
      batch_axes: mesh axes that carry the batch; found from the arguments and constraints if None.
      reduce_axes: inside `jax.shard_map`, manual axes over which the sum is reduced, once.
      spmd_axis_name: accepted for compatibility; not needed.

    Inside `jax.shard_map`, the sum, norms, values and aux are those of the shard's own examples,
    and the sum is typed as varying over the batch axes. `reduce_axes=('data',)` returns the global
    sum instead, the same on every shard. All manual axes that the batch varies over are taken to
    carry examples. If one of them splits a sequence instead, name those that carry examples in
    `batch_axes`.

    Returns:
      A `BoundedSensitivityCallable`. Called with `is_padding_example=mask`, rows where the
      mask is True contribute zero and have zero per-example outputs. Gradients have the tree and
      sharding of their parameters, in float32 for parameters of lower precision.
    """
    del spmd_axis_name
    clip = Clip.checked(
        l2_clip_norm,
        rescale_to_unit_norm=rescale_to_unit_norm,
        automatic_gamma=automatic_gamma,
        normalize_by=normalize_by,
        grid_scale=grid_scale,
        nan_safe=nan_safe,
    )
    check_positions("argnums", argnums)
    function("pre_clipping_transform", pre_clipping_transform)
    task = Task(
        fun,
        clip,
        argnums,
        batch_argnums,
        has_aux=has_aux,
        prng_argnum=prng_argnum,
        keep_batch_dim=keep_batch_dim,
        transform=None if pre_clipping_transform is _identity else pre_clipping_transform,
        dtype=checked_dtype(dtype),
        speed=SpeedOptions.merged(speed, SpeedOptions(microbatch_size, engine, norms, memory)),
        batch_axes=_axis_names(batch_axes),
        reduce_axes=_axis_names(reduce_axes) or (),
        return_values=return_values,
        return_norms=return_grad_norms,
    )
    return _bounded(task)


def clipped_fun(
    fun: Callable[..., Any],
    has_aux: bool = False,
    *,
    batch_argnums: int | Sequence[int] = 0,
    keep_batch_dim: bool = True,
    l2_clip_norm: float | PyTree = 1.0,
    rescale_to_unit_norm: bool = False,
    normalize_by: float = 1.0,
    return_norms: bool = False,
    microbatch_size: int | None = None,
    nan_safe: bool = True,
    dtype: jax.typing.DTypeLike | None = None,
    prng_argnum: int | None = None,
    spmd_axis_name: str | None = None,
    grid_scale: int | None = None,
    automatic_gamma: float | None = None,
    engine: Literal["auto", "vmap"] = "auto",
    batch_axes: Axes = None,
    reduce_axes: Axes = None,
) -> BoundedSensitivityCallable:
    """The output of a function, clipped per example and summed over the batch.

    The options are those of `clipped_grad`. `return_norms=True` returns `(sum, Aux)`, where
    `grad_norms` holds the norms of the outputs.
    """
    del spmd_axis_name
    clip = Clip.checked(
        l2_clip_norm,
        rescale_to_unit_norm=rescale_to_unit_norm,
        automatic_gamma=automatic_gamma,
        normalize_by=normalize_by,
        grid_scale=grid_scale,
        nan_safe=nan_safe,
    )
    task = Task(
        fun,
        clip,
        None,
        batch_argnums,
        has_aux=has_aux,
        prng_argnum=prng_argnum,
        keep_batch_dim=keep_batch_dim,
        dtype=checked_dtype(dtype),
        speed=SpeedOptions(microbatch_size, engine),
        batch_axes=_axis_names(batch_axes),
        reduce_axes=_axis_names(reduce_axes) or (),
        return_norms=return_norms,
    )
    return _bounded(task)


def _bounded(task: Task) -> BoundedSensitivityCallable:
    """The callable of a task. Eager calls compile once per types, shardings and static values."""

    program, splitter = TracedProgram(), CallSplitter(task)

    def traced(call: Any, leaves: Any, padding: Any, shardings: ArgumentShardings) -> Any:
        return clipped_sum(task, call, leaves, padding, shardings, program)

    compiled = jax.jit(traced, static_argnums=(0, 3))

    def run(*args: Any, is_padding_example: Any = None, **kwargs: Any) -> Any:
        call, leaves = splitter.split(args, kwargs)
        shardings = ArgumentShardings.on(leaves.params, leaves.batch)
        if is_padding_example is not None and not isinstance(is_padding_example, jax.Array):
            is_padding_example = np.asarray(without_mask("is_padding_example", is_padding_example))
        arrays = jax.tree.leaves((leaves, is_padding_example))
        in_a_trace = task.clip.traced or any(isinstance(x, jax.core.Tracer) for x in arrays)
        step = traced if in_a_trace else compiled
        if step is compiled and any(isinstance(s, ByIdentity) for s in call.statics):
            # A value without a hash may change in place, so nothing of this call may be cached.
            step = jax.jit(lambda *a: traced(*a), static_argnums=(0, 3))
        return step(call, leaves, is_padding_example, shardings)

    has_aux = task.has_aux or task.return_values or task.return_norms
    exact = task.clip.grid_scale is not None
    bound = task.clip.l2_norm_bound
    return BoundedSensitivityCallable(run, bound, has_aux, task.dtype, exact, program, task)


def _axis_names(axes: Axes) -> tuple[str, ...] | None:
    if axes is None:
        return None
    hint = "the name of a mesh axis, or a tuple of names"
    instance("an axis option", axes, str | tuple | list | set | frozenset, hint)
    names = (axes,) if isinstance(axes, str) else tuple(axes)
    return tuple(text("the name of an axis", name) for name in names)
