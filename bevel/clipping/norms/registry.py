"""The registry of norm rules: the gradient of a parameter at an equation that uses it.

A rule builds the gradient of one example from the other operands `h` and the cotangent `g`, as a
sum of outer products (`outer_products.py`) or as the gradient of a convolution (`convolution.py`).
Its norm and weighted sum are computed from that structure without forming per-example gradients.
Parameters with a use that has no rule are differentiated by JAX, and their per-example gradients
are materialised (`materialised.py`).
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import jax
from jax.extend.core import JaxprEqn

# Kinds of loop around an equation. SEPARATE: each step reads its own slice of the parameter, and
# the gradients of the slices are stacked. SHARED: all steps read all of it; their gradients add.
SEPARATE, SHARED = "separate", "shared"
Loops = tuple[tuple[str, int], ...]  # (kind, length) of each loop, outermost first
# The operand's dimensions as (separate, left, right): there is one sum of outer products for each
# index in `separate`, and left and right vectors run over the others.
OperandSides = tuple[Sequence[int], Sequence[int], Sequence[int]]


class Norm(NamedTuple):
    """Norms of B gradients: an estimate, and an upper bound that holds despite rounding."""

    estimate: jax.Array  # (B,)
    upper: jax.Array  # (B,)


class MeasuredNorm(NamedTuple):
    """Norms computed without scaling, and whether each stayed in the range where that is valid."""

    norm: Norm
    sound: jax.Array  # (B,): whether the norm is valid


class GradientSizes(NamedTuple):
    """The gradient of one example as `separate` sums of `rows` outer products of two vectors."""

    separate: int
    rows: int
    left: int  # entries of a left vector, which comes from the other operand
    right: int  # entries of a right vector, which comes from the cotangent
    looked_up: bool = False  # the left vectors are one-hot
    pixels: int = 0  # for a convolution: entries of the image whose patches are the left vectors


@runtime_checkable
class RuleGradient(Protocol):
    """The gradients of B examples at one equation, as a rule returns them: not formed.

    The class must be a registered pytree, because gradients pass through `jit` and loops.
    `OuterProducts` is one. Other classes are also a `FormableGradient`.
    """

    def norm(self, way: str, scaled: bool) -> MeasuredNorm:
        """Norms (B,), computed the given way (`WAYS` in `clipping/options.py`).

        `Norm.upper` is at least the norm of the contribution that `weighted_sum` adds with a
        coefficient of 1, roundings included. With `scaled`, entries are first scaled by powers of
        two, so that no finite gradient overflows; without it, `sound` says where that was valid.
        """

    def weighted_sum(self, factor: jax.Array, keep: jax.Array | None, way: str) -> jax.Array:
        """`sum_b factor[b] * gradient[b]` over the examples in `keep`, or over all if it is None.

        The result has the dimensions of `SEPARATE` loops, then those of the operand, in float32 or
        wider. Excluded examples may be NaN or inf.
        """


@runtime_checkable
class FormableGradient(RuleGradient, Protocol):
    """A `RuleGradient` that can be formed by its own products, for the way 'form'."""

    def formed(self) -> jax.Array:
        """The gradients (B, separate loops..., *operand), in the dtype of the operands."""


@dataclasses.dataclass(frozen=True)
class NormRule:
    """How to compute the gradient of a parameter at one family of equations."""

    family: str
    accepts: Callable[[JaxprEqn, int], bool]  # (equation, operand that is the parameter)
    others: Callable[[JaxprEqn, int], tuple[int, ...]]  # the operands that make up h
    sizes: Callable[[JaxprEqn, int, Loops], GradientSizes]  # from these, `costs.py` computes costs
    # (equation, operand, loops, h, g); arrays have dimensions (example, loops..., own)
    gradient: Callable[[JaxprEqn, int, Loops, Sequence[jax.Array], jax.Array], RuleGradient]
    sides: Callable[[JaxprEqn, int], OperandSides] | None  # None: not made of outer products


_rules: dict[str, NormRule] = {}


def register(primitive: str, rule: NormRule) -> None:
    """Adds the rule for a primitive. A second rule for the same primitive is an error."""
    if primitive in _rules:
        raise ValueError(f"{primitive} already has a norm rule ({_rules[primitive].family}).")
    _rules[primitive] = rule


def rule_for(primitive: str) -> NormRule | None:
    """The rule of a primitive, or None."""
    return _rules.get(primitive)
