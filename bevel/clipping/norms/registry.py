"""The registry: for an equation in which a parameter meets an example, the norm of its gradient.

A rule gives, per example and without forming the gradient, its L2 norm and a bound on the norm of
what is really summed, and it gives the weighted sum of the gradients over the examples. Parameters
whose uses have no rule are differentiated by JAX, one gradient per example (`kept.py`).
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.extend.core import JaxprEqn


class Norm(NamedTuple):
    """Norms of B gradients: the estimate, and a bound that rounding cannot make too small."""

    estimate: jax.Array  # (B,)
    upper: jax.Array  # (B,)


@dataclasses.dataclass(frozen=True)
class Rule:
    """How one family of equations is normed and summed."""

    family: str
    accepts: Callable[[JaxprEqn, int], bool]  # (equation, operand that is the parameter)
    rows: Callable[[JaxprEqn, int], int]  # outer products that one example's gradient sums
    norm: Callable[[JaxprEqn, int, Any, Any], Norm]  # (..., other operand h, cotangent g)
    weighted_sum: Callable[[JaxprEqn, int, Any, Any], jax.Array]  # (..., h, coefficient * g)


_rules: dict[str, Rule] = {}


def register(primitive: str, rule: Rule) -> None:
    """Adds the rule for a primitive; a second rule for one primitive is an error."""
    if primitive in _rules:
        raise ValueError(f"{primitive} has a norm rule already ({_rules[primitive].family}).")
    _rules[primitive] = rule


def rule_for(primitive: str) -> Rule | None:
    """The rule of a primitive, or None."""
    return _rules.get(primitive)


def registered() -> dict[str, Rule]:
    """All rules, by primitive."""
    return dict(_rules)
