"""One rule for a primitive, found by its name, and a test for every rule."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from bevel.clipping.norms import Norm, Rule, register, registered, registry, rule_for

HERE = Path(__file__)


@pytest.fixture
def rules(monkeypatch):
    """A registry of its own for one test."""
    fresh = {}
    monkeypatch.setattr(registry, "_rules", fresh)
    return fresh


def rule(family="mine"):
    return Rule(
        family,
        accepts=lambda eqn, operand: True,
        rows=lambda eqn, operand: 1,
        norm=lambda eqn, operand, h, g: Norm(h, g),
        weighted_sum=lambda eqn, operand, h, g: h,
    )


def test_a_rule_is_found_by_the_name_of_its_primitive(rules):
    mine = rule()
    register("sin", mine)
    assert rule_for("sin") is mine and rule_for("cos") is None
    assert registered() == {"sin": mine}


def test_a_second_rule_for_one_primitive_is_an_error(rules):
    first = rule("first")
    register("sin", first)
    with pytest.raises(ValueError, match=r"sin has a norm rule already \(first\)"):
        register("sin", rule("second"))
    assert rule_for("sin") is first


def test_one_rule_may_serve_several_primitives(rules):
    mine = rule()
    register("sin", mine)
    register("cos", mine)
    assert rule_for("sin") is rule_for("cos")


def test_what_is_handed_out_is_a_copy():
    registered().clear()
    assert "dot_general" in registered()


def test_a_matrix_product_has_a_rule():
    program = jax.make_jaxpr(lambda x: x @ x)(jnp.ones((2, 2)))
    assert program.eqns[0].primitive.name in registered()


@pytest.mark.parametrize("primitive", sorted(registered()))
def test_every_primitive_with_a_rule_has_a_test(primitive):
    files = [path for path in HERE.parent.glob("test_*.py") if path.name != HERE.name]
    mentioned = [path.name for path in files if primitive in path.read_text()]
    assert mentioned, f"no test file in {HERE.parent.name}/ mentions {primitive}"
