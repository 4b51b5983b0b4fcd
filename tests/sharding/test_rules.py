"""Rules: how they may be written, and what the presets choose."""

import re

import pytest
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from bevel.errors import FixArgumentsError
from bevel.sharding import fsdp, logical, replicated, tensor
from bevel.sharding.rules import RuleLeaf, first_choice, rules_of

MESH = AbstractMesh((4, 2), ("data", "model"))


def chosen(rules, path, shape, **more):
    return first_choice(rules_of(rules), RuleLeaf(path, shape, **more), MESH)


@pytest.mark.parametrize(
    "rules",
    [
        [("*/kernel", P("model"))],
        {"*/kernel": P("model")},
        ((re.compile("kernel$"), P("model")),),
        P("model"),
        [("*kernel", logical({"in": "model"})), P("model")],
    ],
    ids=["pairs", "mapping", "expression", "one for all", "preset by path"],
)
def test_rules_may_be_written_in_several_ways(rules):
    assert chosen(rules, "layers/0/kernel", (8, 8)).spec == P("model")


def test_the_first_rule_that_matches_wins():
    rules = [("a/*", P("data")), (re.compile("w$"), P("model"))]
    assert chosen(rules, "a/w", (8,)).spec == P("data")
    assert chosen(rules, "b/w", (8,)).spec == P("model")
    assert chosen(rules, "A/v", (8,)).spec == P()


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("zero", "'zero' is not a preset; these are replicated, fsdp, tensor"),
        ([("w", None)], "is not a rule"),
        ([("w", P(), 1)], "is not a rule"),
        ([(3, P())], "is not a rule"),
        ([("w", 3)], "is not a rule"),
        (3, "is not a rule"),
    ],
)
def test_other_values_are_refused(rules, message):
    with pytest.raises(FixArgumentsError, match=message):
        rules_of(rules)


def test_replicated_splits_nothing():
    assert chosen(replicated(), "w", (8, 8)).spec == P()


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((64, 128), P(None, "data")),
        ((128, 64), P("data", None)),
        ((64, 64), P("data", None)),
        ((3, 64, 63), P(None, "data", None)),
        ((4096,), P("data")),
    ],
)
def test_fsdp_splits_the_largest_dimension_that_divides(shape, expected):
    assert chosen("fsdp", "w", shape) == (expected, "")


def test_fsdp_says_why_it_splits_nothing():
    assert chosen("fsdp", "w", (8, 8)) == (P(), "fewer than 4096 elements")
    assert chosen("fsdp", "w", (63, 127)) == (P(), "no unsplit dimension is divisible by 4")
    assert chosen(fsdp(("data", "model"), min_size=8), "w", (4, 8)).spec == P(
        None, ("data", "model")
    )


def test_fsdp_takes_what_tensor_leaves():
    rule = fsdp(min_size=1, after=tensor())
    assert chosen(rule, "up/kernel", (8, 32)).spec == P("data", "model")
    assert chosen(rule, "down/kernel", (32, 8)).spec == P("model", "data")
    assert chosen(rule, "up/kernel", (7, 32)) == (
        P(None, "model"),
        "no unsplit dimension is divisible by 4",
    )


@pytest.mark.parametrize(
    ("path", "shape", "expected"),
    [
        ("mlp/up", (8, 32), P(None, "model")),
        ("mlp/down", (32, 8), P("model")),
        ("attention/query/kernel", (8, 8), P(None, "model")),
        ("attention/out/kernel", (8, 8), P("model")),
        ("attention/o_proj/kernel", (8, 8), P("model")),
        ("attention/q_proj/kernel", (8, 8), P(None, "model")),
        ("attn.proj.weight", (8, 8), P("model")),
        ("mlp_out", (8, 8), P("model")),
        ("encoder/w", (8, 8), P(None, "model")),
        ("layers/fc1", (12, 8, 32), P(None, None, "model")),
        ("layers/fc2", (12, 32, 8), P(None, "model")),
        ("odd", (7, 32), P(None, "model")),
        ("odd", (8, 31), P("model")),
    ],
)
def test_tensor_splits_outputs_then_inputs(path, shape, expected):
    assert chosen("tensor", path, shape) == (expected, "")


def test_a_vector_is_split_like_the_outputs_of_its_layer():
    def bias(path, matrix):
        layer = path.rpartition("/")[0]
        siblings = (RuleLeaf(f"{layer}/kernel", matrix),)
        return chosen("tensor", path, matrix[-1:], siblings=siblings).spec

    assert bias("up/bias", (8, 32)) == P("model")
    assert bias("down/bias", (32, 8)) == P()
    assert bias("norm/scale", (8,)) == P()


def test_tensor_says_why_it_splits_nothing():
    assert chosen("tensor", "w", (7, 9)) == (P(), "neither of (7, 9) is divisible by model=2")


@pytest.mark.parametrize("rule", [fsdp("batch"), tensor("mdl")])
def test_a_preset_needs_its_axis(rule):
    with pytest.raises(FixArgumentsError, match=r"the mesh has \('data', 'model'\): write"):
        chosen(rule, "w", (64, 128))


def test_logical_axes_become_axes_of_the_mesh():
    rules = [logical({"embed": None, "mlp": "model"}), ("*", P("data"))]
    assert chosen(rules, "w", (8, 8), names=("embed", "mlp")).spec == P(None, "model")
    assert chosen(rules, "w", (8, 8), names=("data", None)).spec == P("data", None)
    assert chosen(rules, "w", (8, 8)).spec == P("data")
    with pytest.raises(FixArgumentsError, match="w names an axis 'heads'"):
        chosen(rules, "w", (8, 8), names=("heads", None))
