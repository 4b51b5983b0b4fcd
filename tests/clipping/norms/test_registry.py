"""There is one rule per primitive, found by its name, and a test for every rule."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from bevel.clipping.norms import NormRule, register, registry, rule_for
from bevel.clipping.norms.convolution import ConvolutionGradient
from bevel.clipping.norms.outer_products import OuterProducts, Side
from bevel.clipping.norms.registry import FormableGradient, GradientSizes, RuleGradient
from bevel.precision import matmul_precision

HERE = Path(__file__)


@pytest.fixture
def rules(monkeypatch):
    """A separate registry for one test."""
    fresh = {}
    monkeypatch.setattr(registry, "_rules", fresh)
    return fresh


def rule(family="mine"):
    return NormRule(
        family,
        accepts=lambda eqn, operand: True,
        others=lambda eqn, operand: (1 - operand,),
        sizes=lambda eqn, operand, loops: GradientSizes(1, 1, 1, 1),
        gradient=lambda eqn, operand, loops, h, g: (h, g),
        sides=None,
    )


def test_a_rule_is_found_by_the_name_of_its_primitive(rules):
    mine = rule()
    register("sin", mine)
    assert rule_for("sin") is mine and rule_for("cos") is None
    assert rules == {"sin": mine}


def test_a_second_rule_for_one_primitive_is_an_error(rules):
    first = rule("first")
    register("sin", first)
    with pytest.raises(ValueError, match=r"sin already has a norm rule \(first\)"):
        register("sin", rule("second"))
    assert rule_for("sin") is first


def test_one_rule_may_serve_several_primitives(rules):
    mine = rule()
    register("sin", mine)
    register("cos", mine)
    assert rule_for("sin") is rule_for("cos")


def test_gradients_of_rules_have_the_methods_that_clipping_calls():
    x = jnp.ones((2, 3))
    outer = OuterProducts(Side(x, (3,)), Side(x, (3,)), 0, 0, (0, 1), matmul_precision(x.dtype))
    convolution = ConvolutionGradient(x, x, None, (), 0, matmul_precision(x.dtype))
    assert isinstance(outer, RuleGradient) and isinstance(convolution, FormableGradient)
    for gradient in (outer, convolution):  # registered pytrees
        assert [leaf.shape for leaf in jax.tree.leaves(gradient)] == [x.shape, x.shape]


@pytest.mark.parametrize(
    "use",
    [
        lambda w, i: w @ w,
        lambda w, i: w[i],
        lambda w, i: jnp.take(w, i, axis=1),
        lambda w, i: jax.lax.dynamic_slice_in_dim(w, i[0], 1),
    ],
    ids=["a matrix product", "rows", "columns", "a row"],
)
def test_a_rule_accepts(use):
    program = jax.make_jaxpr(use)(jnp.ones((3, 3)), jnp.array([0, 2])).jaxpr
    while rule_for(program.eqns[-1].primitive.name) is None:
        program = program.eqns[-1].params["jaxpr"].jaxpr  # of a nested jit
    eqn = program.eqns[-1]
    assert rule_for(eqn.primitive.name).accepts(eqn, 0)


@pytest.mark.parametrize("primitive", sorted(registry._rules))
def test_every_primitive_with_a_rule_has_a_test(primitive):
    files = [path for path in HERE.parent.glob("test_*.py") if path.name != HERE.name]
    mentioned = [path.name for path in files if primitive in path.read_text()]
    assert mentioned, f"no test file in {HERE.parent.name}/ mentions {primitive}"
