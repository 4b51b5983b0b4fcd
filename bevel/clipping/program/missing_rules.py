"""Finds equations that `vmap` has no batching rule for."""

from typing import Any

import jax
from jax.extend.core import JaxprEqn
from jax.interpreters import batching

from bevel.clipping.program.equations import bind

# In newer JAX, `primitive_batchers` only forwards to the other table, and cannot be read.
_TABLES = [
    table
    for name in ("primitive_batchers", "fancy_primitive_batchers")
    if isinstance(table := getattr(batching, name, None), dict)
]

# The rule of `ragged_dot` refuses weights that do not depend on the example, which are those of
# every mixture of experts. Two ways to do without a loop were rejected. Rows of shape (B, M, D)
# with sizes of shape (B, G) are a valid ragged product, but earlier versions of XLA expand it
# wrongly on GPUs (RaggedDotRewriter broadcasts the sizes along other dimensions). Sorting the rows
# of all examples by group would let the groups of one example move the rounding of another.
UNUSABLE = {"ragged_dot_general"}

# Calls that `vmap` handles without a rule: it batches their function.
HANDLED = {"custom_jvp_call", "custom_vjp_call", "shard_map", "closed_call", "core_call"}


def has_batching_rule(eqn: JaxprEqn) -> bool:
    """Whether `vmap` can batch an equation, as far as is known before it tries.

    An equation counts as having no rule only if JAX says so, and if running it in a loop computes
    the same: it has inputs, all of them arrays, and no side effects.
    """
    if eqn.primitive.name in UNUSABLE:
        return False
    if eqn.primitive.name in HANDLED or any(eqn.primitive in table for table in _TABLES):
        return True
    arrays = all(isinstance(v.aval, jax.core.ShapedArray) for v in eqn.invars)
    if not (_TABLES and eqn.invars and arrays) or eqn.effects:
        return True
    return not _is_missing(eqn)


def _is_missing(eqn: JaxprEqn) -> bool:
    """Whether `vmap` of an equation fails because its primitive has no rule."""
    avals: list[Any] = [v.aval for v in eqn.invars]
    inputs = [jax.ShapeDtypeStruct((1, *aval.shape), aval.dtype) for aval in avals]
    try:
        jax.eval_shape(jax.vmap(lambda *one: bind(eqn, one)), *inputs)
    except NotImplementedError as error:
        return str(error) == f"Batching rule for '{eqn.primitive}' not implemented"
    except Exception:  # whatever it is, it is reported where the program is batched
        return False
    return False
