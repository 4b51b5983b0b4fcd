"""Ask the compiler to give two arrays one sharding, whatever it chooses, at no cost when run."""

import zlib
from collections.abc import Sequence
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.extend.mlir.dialects import sdy
from jax.interpreters import ad, batching, mlir

_sharding_group = Primitive("sharding_group")


def sharded_alike(x: jax.Array, like: jax.Array, number: int) -> jax.Array:
    """`x`. The compiler gives `x` and `like`, of one shape, the same sharding.

    It settles this before it propagates shardings through products, so a sharding of `like` that is
    known early decides that of `x`. `like` itself is not computed if nothing else needs it.
    `number` tells groups of one program apart. It is part of the program, so count from 0.
    """
    return _sharding_group.bind(x, like, number=number)


def _lowered(ctx: Any, x: Any, like: Any, *, number: int) -> Sequence[Any]:
    shape = ctx.avals_in[0].shape
    # A stable number, so that compiled programs are found in the compiler's cache. It depends on
    # the shape, because another call in the same program may count from 0 too.
    group = zlib.crc32(repr((number, shape)).encode())
    for value in (x, like):
        sdy.ShardingGroupOp(value, group)
    return [x]


def _batched(values: Sequence[Any], axes: Sequence[Any], *, number: int) -> tuple[Any, int]:
    (size,) = {x.shape[d] for x, d in zip(values, axes, strict=True) if d is not None}
    x, like = (batching.bdim_at_front(x, d, size) for x, d in zip(values, axes, strict=True))
    return _sharding_group.bind(x, like, number=number), 0


def _derived(primals: Sequence[Any], tangents: Sequence[Any], *, number: int) -> tuple[Any, Any]:
    return _sharding_group.bind(*primals, number=number), tangents[0]


_sharding_group.def_impl(lambda x, like, number: x)
_sharding_group.def_abstract_eval(lambda x, like, number: x)
mlir.register_lowering(_sharding_group, _lowered)
batching.primitive_batchers[_sharding_group] = _batched
ad.primitive_jvps[_sharding_group] = _derived
