"""The slow truth: float64, one example at a time, no cleverness.

Every engine of `bevel.clipped_grad` must equal `clipped_sum` to the rounding of its dtype.
A loss must compute in the dtype of its arguments: one that casts to float32 has a float32 oracle.
Random numbers are to be drawn in a fixed dtype and cast, as the float64 stream is another one.
Sharding constraints have no place here: pass the loss without them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Oracle(NamedTuple):
    """B examples; every leaf is a NumPy array, float64 where it was a float.

    norms has the structure of clip_norm: (B,) for one number, one (B,) per group for a tree.
    Values, norms and aux of padding and of non-finite examples are reported as computed.
    """

    grad: Any  # the structure of the gradient (of the transform's output, if there is one)
    values: np.ndarray  # (B,)
    norms: Any
    aux: Any  # leaves (B, ...); None without has_aux


def clipped_sum(
    fun: Callable[..., Any],
    *args: Any,
    clip_norm: Any,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    batch_argnums: int | Sequence[int] = 1,
    keep_batch_dim: bool = True,
    padding: Any = None,
    rescale: bool = False,
    normalize_by: float = 1.0,
    gamma: float | None = None,
    transform: Callable[[Any], Any] | None = None,
    prng_argnum: int | None = None,
    example_key: Callable[[jax.Array, int], jax.Array] = jax.random.fold_in,
) -> Oracle:
    """`sum_i clip(grad fun(params, batch[i:i+1])) / normalize_by`.

    clip_norm: a number, or a tree of numbers that is a prefix of the gradient, where each number
        bounds its own subtree (with rescale, each subtree is bounded by one).
    gamma: automatic clipping, `clip_norm * g / (|g| + gamma)`.
    example_key: example i draws from `example_key(args[prng_argnum], i)`.

    An example with a non-finite entry anywhere in its gradient contributes zero to every group.
    """
    argnums = argnums if isinstance(argnums, int) else tuple(argnums)
    batch_argnums = (batch_argnums,) if isinstance(batch_argnums, int) else tuple(batch_argnums)
    with jax.enable_x64(True), jax.default_device(jax.local_devices()[0]):
        args = jax.tree.map(_to_float64, args)
        batch_size = jax.tree.leaves([args[i] for i in batch_argnums])[0].shape[0]
        padding = np.zeros(batch_size, bool) if padding is None else np.asarray(padding)
        value_and_grad = _value_and_grad(fun, argnums, has_aux)

        total, values, norms, auxes = None, [], [], []
        for i in range(batch_size):
            example = list(args)
            for k in batch_argnums:
                example[k] = jax.tree.map(
                    lambda x, i=i: x[i : i + 1] if keep_batch_dim else x[i], args[k]
                )
            if prng_argnum is not None:
                example[prng_argnum] = example_key(args[prng_argnum], i)
            value, grad = value_and_grad(*example)
            value, aux = value if has_aux else (value, None)
            grad = _to_numpy(grad if transform is None else transform(grad))

            if total is None:
                total = jax.tree.map(np.zeros_like, grad)
            finite = all(np.isfinite(g).all() for g in jax.tree.leaves(grad))
            if finite and not padding[i]:
                total = jax.tree.map(np.add, total, _clip(grad, clip_norm, rescale, gamma))
            values.append(value)
            norms.append(_over_groups(lambda _, group: _norm(group), clip_norm, grad))
            auxes.append(_to_numpy(aux))

    return Oracle(
        grad=jax.tree.map(lambda g: g / normalize_by, total),
        values=np.asarray(values),
        norms=_stack(norms),
        aux=_stack(auxes) if has_aux else None,
    )


def middle_norm(fun: Callable[..., Any], *args: Any, **options: Any) -> float:
    """The median of the norms: as clip_norm it clips about half of the examples."""
    return float(np.median(clipped_sum(fun, *args, clip_norm=1.0, **options).norms))


# Cached: a suite asks for the same loss many times, and compiling it is most of the time.
@functools.lru_cache(maxsize=256)
def _value_and_grad(fun, argnums, has_aux):
    return jax.jit(jax.value_and_grad(fun, argnums, has_aux))


def _clip(grad, clip_norm, rescale, gamma):
    def clip_group(bound, group):
        coefficient = _coefficient(float(bound), _norm(group), rescale, gamma)
        return jax.tree.map(lambda g: coefficient * g, group)

    return _over_groups(clip_group, clip_norm, grad)


def _coefficient(bound: float, norm: float, rescale: bool, gamma: float | None) -> float:
    if norm == 0.0:
        return 0.0  # of a zero gradient: any number is right, and 0 / 0 is none
    if gamma is not None:
        return (1.0 if rescale else bound) / (norm + gamma)
    if rescale:
        return 1.0 / max(bound, norm)  # min(1, bound / norm) / bound, with its limit at bound = 0
    return min(1.0, bound / norm)


def _norm(tree) -> float:
    leaves = [np.ravel(g) for g in jax.tree.leaves(tree)]
    return float(np.linalg.norm(np.concatenate(leaves))) if leaves else 0.0


def _over_groups(f, clip_norm, grad):
    return jax.tree.map(f, clip_norm, grad)  # takes its first tree as a prefix of the others


def _stack(trees):
    return jax.tree.map(lambda *xs: np.stack(xs), *trees)


def _to_numpy(tree):
    return jax.tree.map(np.asarray, tree)


def _to_float64(x):
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.device_put(x, jax.local_devices()[0])
    x = np.asarray(x)  # gathers a sharded array
    return x.astype(np.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x
