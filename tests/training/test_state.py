"""The training state, and the split into trainable and frozen parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from bevel.errors import FixArgumentsError
from bevel.sharding import make_mesh
from bevel.training.state import (
    TrainingState,
    copied,
    joined,
    on_mesh,
    split,
    trained_paths,
    widened,
)

PARAMS = {"base": {"w": jnp.ones(3)}, "lora": [{"a": jnp.zeros(2)}, {"b": jnp.ones(1)}]}


@pytest.mark.parametrize(
    "trainable, expected",
    [
        (None, 3),
        ("lora/*", 2),
        (("lora/0/*", "base/*"), 2),
        (lambda path: path.endswith("b"), 1),
        ({"base": {"w": True}, "lora": [{"a": False}, {"b": np.bool(True)}]}, 2),
    ],
)
def test_parameters_are_split_by_path_and_joined_again(trainable, expected):
    chosen, frozen = split(PARAMS, trainable)
    assert len(jax.tree.leaves(chosen)) == expected
    assert len(jax.tree.leaves(frozen)) == 3 - expected
    again = joined(chosen, frozen)
    assert jax.tree.structure(again) == jax.tree.structure(PARAMS)
    assert all(a is b for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(PARAMS), strict=True))


def test_a_pattern_that_matches_nothing_is_an_error():
    with pytest.raises(FixArgumentsError, match="matches none of the parameters: base/w, lora/0/a"):
        split(PARAMS, "adapter/*")


def test_a_tree_of_booleans_chooses_the_leaves_that_are_true():
    mask = {"base": {"w": False}, "lora": [{"a": True}, {"b": False}]}
    assert trained_paths(PARAMS, mask) == ["lora/0/a"]


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"base": True, "lora": [False]}, "2 booleans, which does not have the structure of the 3"),
        ({"base": "lora/*"}, "pass patterns of paths such as"),
        ((), "pass patterns"),
        (("lora/*", 3), "pass patterns"),
        (3, "pass patterns"),
        ({"base": {"w": 1}, "lora": [{"a": 0}, {"b": 1}]}, "a tree of booleans"),
    ],
)
def test_what_names_no_parameters_is_refused(wrong, message):
    with pytest.raises(FixArgumentsError, match=message):
        split(PARAMS, wrong)


def test_the_optimizer_sees_float32_and_other_leaves_as_they_are():
    tree = {
        "narrow": jnp.ones(2, jnp.bfloat16),
        "wide": jnp.ones(2),
        "count": jnp.ones(2, jnp.int8),
        "none": None,
    }
    found = jax.tree.map(lambda x: str(x.dtype), widened(tree))
    assert found == {"narrow": "float32", "wide": "float32", "count": "int8", "none": None}


def test_the_state_is_a_tree_with_keywords_only():
    state = TrainingState(step=0, params=PARAMS, opt_state=(), noise_state=())
    assert len(jax.tree.leaves(state)) == 4 and state.average is None
    with pytest.raises(TypeError):
        TrainingState(0, PARAMS, (), ())
    with pytest.raises(AttributeError):
        state.step = 1


def test_copies_are_other_memory_and_lie_where_the_original_lies():
    mesh = make_mesh("data=8")
    x = on_mesh(jnp.arange(8.0), mesh)
    assert x.sharding.spec == P() and len(x.devices()) == 8
    (y,) = copied([x])
    assert y.sharding == x.sharding
    x.delete()
    assert np.array_equal(y, np.arange(8.0))
    assert on_mesh(y, mesh) is y and on_mesh(y, None) is y
