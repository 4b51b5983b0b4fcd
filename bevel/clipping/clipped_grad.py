"""`clipped_grad` and `clipped_fun`: the sum over a batch of per-example clipped contributions."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from bevel.clipping.arguments import ByIdentity, PyTree, split_call
from bevel.clipping.bounded import BoundedSensitivityCallable, TracedProgram
from bevel.clipping.choose import WAYS
from bevel.clipping.engine import clipped_sum
from bevel.clipping.options import Clip, Task
from bevel.errors import FixArgumentsError
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
    l2_clip_norm: float | PyTree,
    rescale_to_unit_norm: bool = False,
    normalize_by: float = 1.0,
    batch_argnums: int | Sequence[int] = 1,
    keep_batch_dim: bool = True,
    return_values: bool = False,
    return_grad_norms: bool = False,
    pre_clipping_transform: Callable[[PyTree], PyTree] = _identity,
    microbatch_size: int | None = None,
    nan_safe: bool = True,
    dtype: jax.typing.DTypeLike | None = None,
    prng_argnum: int | None = None,
    spmd_axis_name: str | None = None,
    grid_scale: int | None = None,
    automatic_gamma: float | None = None,
    engine: Literal["auto", "vmap"] = "auto",
    norms: str | Mapping[str, str] = "auto",
    memory: Literal["auto", "bookkeeping", "low"] = "auto",
    batch_axes: Axes = None,
    reduce_axes: Axes = None,
) -> BoundedSensitivityCallable:
    """The gradient of a loss, clipped per example and summed over the batch.

    The result equals `sum_i clip(jax.grad(fun)(params, batch[i:i+1]))`, whatever `fun` computes for
    a whole batch: a loss that couples examples (batch normalisation) is evaluated on one at a time.
    Operations that would see the other examples when batched (callbacks, rules of `custom_vmap`,
    primitives of your own) run one example at a time or are refused: docs/clipping.md lists them.
    Clipped contributions are smaller by the slack that covers rounding (`bevel.precision`).
    `fun` may hold sharding constraints, jit, scan, cond, remat and custom rules, on any mesh. As
    with `jax.jit`, Python values that it closes over are read when it is traced, not at each call.

    Changes the privacy guarantee:
      l2_clip_norm: one number, or a tree of numbers that is a prefix of the parameters (each
        subtree is then clipped by itself). May be traced with `rescale_to_unit_norm=True`.
      rescale_to_unit_norm: divide by the clip norm, so that the bound is 1 (per group).
      normalize_by: divide the sum by this, usually the expected batch size.
      automatic_gamma: scale by `l2_clip_norm / (norm + gamma)` instead of clipping (AUTO-S).
      pre_clipping_transform: applied to each example's gradient; the norm is that of the result.
      grid_scale: round contributions to multiples of 1 / grid_scale and sum them as int64, exactly.
      nan_safe: examples whose gradient is not finite contribute zero.
      keep_batch_dim: True hands `fun` one example with a batch dimension of size 1. False removes
        that dimension: with data of shape (users, examples, ...) this clips per user.

    Changes outputs:
      argnums, has_aux: as in `jax.grad`.
      batch_argnums: arguments that are cut into examples; trees of arrays with one leading size.
      prng_argnum: an argument that is a key; example i gets it folded with i.
      return_values, return_grad_norms: give `(grad, Aux(values, grad_norms, aux))`.
      dtype: of the result. The sum is taken in float32 or wider in any case.

    Changes speed only:
      microbatch_size: so many examples at a time; pieces that are all padding are skipped.
      engine: 'auto', or 'vmap' for the plain `jax.vmap(jax.grad(fun))`, kept as a reference.
      norms: how norms are taken: 'outer', 'gram', 'product', 'form' or 'keep' wherever that can be
        done, or a dict from paths of parameters (or parts of them) to one of these.
        `bevel.explain` shows what is chosen, what could be, and what each costs.
      memory: 'bookkeeping' holds the values of a tap until the sum is taken, 'low' computes them
        again in a second backward pass. 'auto' takes the second within a `jax.checkpoint`.
      batch_axes: mesh axes that carry the batch; found from the arguments and constraints if None.
      spmd_axis_name: accepted for compatibility; not needed.

    Inside `jax.shard_map`: norms, values and aux are those of the shard's own examples, and the sum
    is over the shard's own examples, typed as varying over the batch axes. `reduce_axes=('data',)`
    gives the global sum instead, reduced once and the same on every shard. All manual axes that the
    batch varies over are taken to carry examples: where one of them splits a sequence instead, name
    the ones that do carry examples in `batch_axes`.

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
    task = Task(
        fun,
        clip,
        argnums,
        batch_argnums,
        has_aux=has_aux,
        prng_argnum=prng_argnum,
        keep_batch_dim=keep_batch_dim,
        transform=None if pre_clipping_transform is _identity else pre_clipping_transform,
        microbatch_size=microbatch_size,
        dtype=_checked_dtype(dtype),
        engine=_checked_engine(engine),
        norms=_checked_norms(norms),
        memory=_checked_memory(memory),
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

    Options are those of `clipped_grad`; `return_norms=True` gives `(sum, Aux)` with `grad_norms`
    holding the norms of the outputs.
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
        microbatch_size=microbatch_size,
        dtype=_checked_dtype(dtype),
        engine=_checked_engine(engine),
        batch_axes=_axis_names(batch_axes),
        reduce_axes=_axis_names(reduce_axes) or (),
        return_norms=return_norms,
    )
    return _bounded(task)


def _bounded(task: Task) -> BoundedSensitivityCallable:
    """The callable of a task. Eager calls compile once per types, shardings and statics."""

    program = TracedProgram()

    def traced(call: Any, leaves: Any, padding: Any, seen: ArgumentShardings) -> Any:
        return clipped_sum(task, call, leaves, padding, seen, program)

    compiled = jax.jit(traced, static_argnums=(0, 3))

    def run(*args: Any, is_padding_example: Any = None, **kwargs: Any) -> Any:
        call, leaves = split_call(
            args,
            kwargs,
            argnums=task.argnums,
            batch_argnums=task.batch_argnums,
            prng_argnum=task.prng_argnum,
        )
        seen = ArgumentShardings.on(leaves.params, leaves.batch)
        if is_padding_example is not None and not isinstance(is_padding_example, jax.Array):
            is_padding_example = np.asarray(is_padding_example)
        arrays = jax.tree.leaves((leaves, is_padding_example))
        in_a_trace = task.clip.traced or any(isinstance(x, jax.core.Tracer) for x in arrays)
        step = traced if in_a_trace else compiled
        if step is compiled and any(isinstance(s, ByIdentity) for s in call.statics):
            # A value without a hash may change in place: nothing may be remembered of this call.
            step = jax.jit(lambda *a: traced(*a), static_argnums=(0, 3))
        return step(call, leaves, is_padding_example, seen)

    has_aux = task.has_aux or task.return_values or task.return_norms
    exact = task.clip.grid_scale is not None
    bound = task.clip.l2_norm_bound
    return BoundedSensitivityCallable(run, bound, has_aux, task.dtype, exact, program, task)


def _checked_engine(engine: str) -> str:
    if engine not in ("auto", "vmap"):
        raise FixArgumentsError(f"engine={engine!r}: write 'auto', or 'vmap' for the reference.")
    return engine


def _checked_norms(norms: str | Mapping[str, str]) -> str | Mapping[str, str]:
    """A way for all parameters, or ways by path."""
    for way in norms.values() if isinstance(norms, Mapping) else [norms]:
        if way not in (*WAYS, "auto"):
            raise FixArgumentsError(
                f"norms has {way!r}: write 'auto', or one of {', '.join(map(repr, WAYS))}."
            )
    return norms


def _checked_memory(memory: str) -> str:
    if memory not in ("auto", "bookkeeping", "low"):
        raise FixArgumentsError(f"memory={memory!r}: write 'auto', 'bookkeeping' or 'low'.")
    return memory


def _checked_dtype(dtype: Any) -> Any:
    """The dtype of the result: one with the range of float32, so that no sum leaves it."""
    if dtype is None:
        return None
    wanted = jnp.dtype(dtype)
    if wanted not in (jnp.dtype(d) for d in ("float32", "float64", "bfloat16")):
        raise FixArgumentsError(
            f"dtype={wanted.name}: a sum of clipped gradients may leave its range. Use float32, "
            "float64 or bfloat16."
        )
    if wanted == jnp.dtype("float64") and not jax.config.jax_enable_x64:
        raise FixArgumentsError("dtype=float64 needs jax.config.update('jax_enable_x64', True).")
    return wanted


def _axis_names(axes: Axes) -> tuple[str, ...] | None:
    if axes is None:
        return None
    return (axes,) if isinstance(axes, str) else tuple(axes)
