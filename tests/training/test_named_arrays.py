"""Arrays by path become trees again, and nothing is lost on the way."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import tree_leaves_with_path

from bevel.errors import FixArgumentsError
from bevel.training.named_arrays import arranged
from bevel.training.state import path_text

TREES = {
    "nested": {"dense": [{"w": np.ones((2, 3))}, {"w": np.zeros(3)}], "scale": np.ones(())},
    "one array": np.ones(3),
    "names with dots": {"layer.0": {"w": np.ones(2)}, "layer": {"0": {"w": np.zeros(2)}}},
    "names with slashes": {"dense/kernel": np.ones(2), "dense/bias": np.zeros(2)},
}


def by_path(tree):
    return {path_text(path): x for path, x in tree_leaves_with_path(tree)}


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_a_tree_is_the_same_after_the_way_there_and_back(tree):
    got = arranged(by_path(tree), like=jax.tree.map(np.empty_like, tree))
    assert jax.tree.structure(got) == jax.tree.structure(tree)
    assert all(
        np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (got, tree)), strict=True)
    )


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_without_like_no_array_is_lost(tree):
    got = arranged(by_path(tree), like=None)
    assert by_path(got).keys() == by_path(tree).keys()


@pytest.mark.parametrize("arrays", [("a", "a/b"), ("a/b", "a")])
def test_an_array_inside_an_array_is_refused(arrays):
    with pytest.raises(FixArgumentsError, match=r"two entries at 'a.*Pass like="):
        arranged({name: np.ones(1) for name in arrays}, like=None)


def test_leaves_without_an_array_stay_as_they_are():
    like = {"frozen": jnp.ones(2, jnp.bfloat16), "trained": jnp.zeros(2)}
    got = arranged({"trained": np.ones(2)}, like)
    assert got["frozen"] is like["frozen"] and np.array_equal(got["trained"], [1, 1])


def test_other_structures_and_shapes_are_named():
    with pytest.raises(FixArgumentsError, match="like lacks the parameters b of the run"):
        arranged({"a": np.ones(2), "b": np.ones(2)}, {"a": np.ones(2)})
    with pytest.raises(FixArgumentsError, match=r"like has shape \(3,\) at 'a'"):
        arranged({"a": np.ones(2)}, {"a": np.ones(3)})
