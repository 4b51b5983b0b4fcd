"""One tree: clipped to its bound in every dtype and at every scale, or rounded to whole numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bevel import clip_and_round_to_grid, clip_pytree
from bevel.errors import FixArgumentsError

RNG = np.random.default_rng(0)
TREE = {
    "w": RNG.normal(size=(3, 4)).astype(np.float32),
    "b": [RNG.normal(size=5).astype(np.float32), np.float32(0.7)],
}


def norm(tree):
    return np.sqrt(sum(np.sum(np.asarray(x, np.float64) ** 2) for x in jax.tree.leaves(tree)))


def clipped(tree, limit, rescale=False):
    factor = min(1.0, limit / norm(tree)) / (limit if rescale else 1.0)
    return jax.tree.map(lambda x: factor * np.asarray(x, np.float64), tree)


def assert_close(got, expected, rtol=1e-5):
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float64), b, rtol=rtol)


@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("limit", [0.5, 100.0])
def test_equals_float64(limit, rescale):
    got = clip_pytree(TREE, limit, rescale)
    assert_close(got.clipped, clipped(TREE, limit, rescale))
    np.testing.assert_allclose(got.norm, norm(TREE), rtol=1e-6)


def test_a_short_tree_is_unchanged():
    got = clip_pytree(TREE, 100.0).clipped
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: bool(jnp.all(a == b)), got, TREE)))


@pytest.mark.parametrize("rescale", [False, True])
def test_a_prefix_tree_clips_each_subtree_by_itself(rescale):
    got = clip_pytree(TREE, {"w": 0.5, "b": 0.25}, rescale)
    assert_close(got.clipped["w"], clipped(TREE["w"], 0.5, rescale))
    assert_close(got.clipped["b"], clipped(TREE["b"], 0.25, rescale))
    np.testing.assert_allclose(got.norm, norm(TREE), rtol=1e-6)


def test_a_tree_of_norms_that_is_no_prefix_is_refused():
    with pytest.raises(FixArgumentsError, match="not a prefix of what is clipped"):
        clip_pytree(TREE, {"w": 0.5})


@pytest.mark.parametrize("limit", [1.0, {"w": 1.0, "b": 1.0}])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_tree_that_is_not_finite_gives_zeros(bad, limit):
    tree = {"w": jnp.ones(2), "b": jnp.array([1.0, bad])}
    got = clip_pytree(tree, limit)
    assert_close(got.clipped, {"w": np.zeros(2), "b": np.zeros(2)})
    assert not np.isfinite(got.norm)


@pytest.mark.parametrize("limit", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_leaves_keep_their_dtype_and_stay_within_the_bound(dtype, limit):
    for seed in range(8):
        rng = np.random.default_rng(seed)
        tree = {"a": jnp.asarray(rng.normal(size=33), dtype), "b": jnp.asarray(rng.normal(), dtype)}
        got = clip_pytree(tree, limit).clipped
        assert got["a"].dtype == got["b"].dtype == dtype
        assert norm(got) <= limit
        assert norm(got) >= 0.98 * limit


def test_rounding_to_a_subnormal_stays_within_the_bound():
    step = 2.0**-24  # of float16 near zero: rounding there has no small relative error
    limit = 2 * 8.7 * step
    assert norm(clip_pytree(jnp.ones(4, jnp.float16), limit).clipped) <= limit


def test_leaves_of_several_dtypes_are_clipped_together():
    tree = {"low": jnp.full(4, 3.0, jnp.bfloat16), "high": jnp.full(4, 4.0)}
    got = clip_pytree(tree, 1.0).clipped
    assert got["low"].dtype == jnp.bfloat16 and got["high"].dtype == jnp.float32
    assert 0.98 <= norm(got) <= 1.0


@pytest.mark.parametrize("tree", [{}, (), None, {"a": []}])
def test_an_empty_tree_is_returned(tree):
    got = clip_pytree(tree, 1.0)
    assert got.clipped == tree and got.norm == 0.0


def test_leaves_without_entries_are_returned():
    got = clip_pytree({"none": jnp.zeros((0, 3)), "some": jnp.array([3.0, 4.0])}, 1.0)
    assert got.clipped["none"].shape == (0, 3)
    np.testing.assert_allclose(got.clipped["some"], [0.6, 0.8], rtol=1e-5)


def test_zeros_stay_zeros():
    for options in ((1.0, False), (1.0, True), (0.0, False), (0.0, True)):
        assert_close(clip_pytree(jnp.zeros(3), *options).clipped, np.zeros(3))


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
@pytest.mark.parametrize("limit", [0.0, {"a": 0.0, "b": 0.0}, {"a": 0.5, "b": 1}])
def test_clip_norms_near_zero_rescale_to_norm_one_in_every_dtype(dtype, limit, x64):
    if dtype == "float64" and not x64:
        return
    with jax.enable_x64(x64):
        tree = {"a": jnp.array([3.0, 4.0], dtype), "b": jnp.array([12.0], dtype)}
        got, before = clip_pytree(tree, limit, rescale_to_unit_norm=True)
    assert got["a"].dtype == got["b"].dtype == dtype
    assert before.dtype == np.float32 and before == 13
    slack = 4e-6 if dtype in ("float32", "float64") else 2 * float(jnp.finfo(dtype).eps)
    for part in [got] if limit == 0.0 else [got["a"], got["b"]]:
        assert 1 - slack <= norm(part) <= 1


@pytest.mark.parametrize("scale", [1e30, 1e-30])
@pytest.mark.parametrize("rescale", [False, True])
def test_squares_neither_overflow_nor_underflow(scale, rescale):
    tree = {"a": jnp.full(3, scale), "b": jnp.array(2 * scale)}
    limit = 1.0 if scale > 1 else 1e-32
    got = clip_pytree(tree, limit, rescale)
    assert_close(got.clipped, clipped(tree, limit, rescale))
    np.testing.assert_allclose(float(got.norm), norm(tree), rtol=1e-6)
    assert norm(got.clipped) <= (1.0 if rescale else limit)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_the_grid_gives_whole_numbers_within_the_bound(dtype):
    with jax.enable_x64(True):
        tree = jax.tree.map(lambda x: jnp.asarray(x, dtype), TREE)
        integers, before = clip_and_round_to_grid(tree, 0.5, 1000)
        again, _ = clip_and_round_to_grid(tree, 0.5, 1000)
    assert all(x.dtype == np.int64 for x in jax.tree.leaves(integers))
    assert norm(integers) <= 1000
    assert_close(again, jax.tree.map(np.asarray, integers), rtol=0)
    np.testing.assert_allclose(before, norm(tree), rtol=1e-5)
    room = 0.5 * np.sqrt(18) / 2000
    expected = jax.tree.map(lambda x: 2000 * x, clipped(tree, 0.5 - room))
    for a, b in zip(jax.tree.leaves(integers), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=0.51)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_the_grid_gives_zeros_for_what_is_not_finite(bad):
    with jax.enable_x64(True):
        integers, _ = clip_and_round_to_grid({"a": jnp.array([1.0, bad])}, 1.0, 1000)
    assert np.array_equal(integers["a"], [0, 0])


def test_the_grid_takes_numpy_integers():
    with jax.enable_x64(True):
        integers, _ = clip_and_round_to_grid(np.array([3.0, 4.0], np.float32), 10.0, np.int64(80))
    assert np.array_equal(integers, [24, 32])


@pytest.mark.parametrize("limit", [7.0, 0.1])
def test_a_grid_that_is_too_coarse_is_refused(limit):
    with jax.enable_x64(True), pytest.raises(FixArgumentsError, match="too coarse"):
        clip_and_round_to_grid(jnp.ones(200), limit, 7)  # rounding may add sqrt(200) / 2 = 7.07


@pytest.mark.parametrize("limit", [{"a": 1.0}, {"a": 1.0, "b": 1.0}, [1.0]])
def test_the_grid_has_one_clip_norm(limit):
    tree = {"a": jnp.ones(2), "b": jnp.ones(2)}
    with jax.enable_x64(True), pytest.raises(FixArgumentsError, match="one l2_clip_norm, not a"):
        clip_and_round_to_grid(tree, limit, 1000)


def test_the_grid_of_an_empty_tree_is_empty():
    with jax.enable_x64(True):
        integers, before = clip_and_round_to_grid({}, 1.0, 1000)
    assert integers == {} and before == 0.0


def test_the_grid_needs_64_bit_integers():
    with pytest.raises(FixArgumentsError, match="jax_enable_x64"):
        clip_and_round_to_grid(jnp.ones(2), 1.0, 1000)
