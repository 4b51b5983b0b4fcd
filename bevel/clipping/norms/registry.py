"""The registry: for an equation in which a parameter meets an example, the shape of its gradient.

A rule says how the gradient of one example follows from the other operands `h` and the cotangent
`g`: as a sum of outer products (`outer_products.py`), or as that of a convolution (`convolution.py`).
Norm and weighted sum follow from that shape without forming one gradient per example. Parameters
whose uses have no rule are differentiated by JAX, one gradient per example (`materialised.py`).
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
from jax.extend.core import JaxprEqn

# Of one loop around an equation, as the parameter sees it: each step has its own slice of it, whose
# gradients lie side by side, or all steps share it, and their gradients add.
SEPARATE, SHARED = "separate", "shared"
Loops = tuple[tuple[str, int], ...]  # (kind, length) of each loop, the outermost first


class Norm(NamedTuple):
    """Norms of B gradients: the estimate, and a bound that rounding cannot make too small."""

    estimate: jax.Array  # (B,)
    upper: jax.Array  # (B,)


class MeasuredNorm(NamedTuple):
    """Norms taken without scaling, and whether each was within the range where that is sound."""

    norm: Norm
    sound: jax.Array  # (B,)


class GradientSizes(NamedTuple):
    """The gradient of one example as `separate` sums of `rows` outer products of two vectors."""

    separate: int
    rows: int
    left: int  # entries, those that the other operand gives
    right: int  # entries, those that the cotangent gives
    looked_up: bool = False  # the left vectors are unit vectors
    pixels: int = 0  # of a convolution: numbers from which the left vectors are cut


class _Gradient(Protocol):
    """The gradients of B examples with respect to one operand, not formed."""

    def norm(self, way: str, scaled: bool) -> MeasuredNorm: ...

    def weighted_sum(self, factor: jax.Array, keep: jax.Array | None, way: str) -> jax.Array:
        """`sum_b factor[b] * gradient[b]`; loops with separate slices are its first dimensions."""
        ...


@dataclasses.dataclass(frozen=True)
class NormRule:
    """How one family of equations makes a gradient."""

    family: str
    accepts: Callable[[JaxprEqn, int], bool]  # (equation, operand that is the parameter)
    others: Callable[[JaxprEqn, int], tuple[int, ...]]  # the operands that make up h
    sizes: Callable[[JaxprEqn, int, Loops], GradientSizes]
    # (..., h, g), arrays with dimensions (example, loops..., own)
    gradient: Callable[[JaxprEqn, int, Loops, Sequence[Any], Any], Any]
    # Dimensions of the operand: those taken apart, and the two sets whose vectors are multiplied;
    # None for gradients that are not made of outer products.
    sides: Callable[[JaxprEqn, int], tuple[Sequence[int], Sequence[int], Sequence[int]]] | None


_rules: dict[str, NormRule] = {}


def register(primitive: str, rule: NormRule) -> None:
    """Adds the rule for a primitive; a second rule for one primitive is an error."""
    if primitive in _rules:
        raise ValueError(f"{primitive} has a norm rule already ({_rules[primitive].family}).")
    _rules[primitive] = rule


def rule_for(primitive: str) -> NormRule | None:
    """The rule of a primitive, or None."""
    return _rules.get(primitive)


def registered() -> dict[str, NormRule]:
    """All rules, by primitive."""
    return dict(_rules)
