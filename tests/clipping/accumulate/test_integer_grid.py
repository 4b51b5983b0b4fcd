"""Contributions on the integer grid are within the bound and summed exactly."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bevel import clipped_fun, clipped_grad
from bevel.clipping.accumulate.integer_grid import on_grid, tightened
from bevel.errors import FixArgumentsError

ROWS = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
SCALE = 1000


def summed(rows, **options):
    fn = clipped_fun(lambda x: x[0], l2_clip_norm=1.0, grid_scale=SCALE, **options)
    return fn(rows)


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def test_rounding_after_tightening_stays_within_the_clip_norm():
    for dimension in (1, 7, 1000):
        limit = tightened(2.0, 100, dimension)
        worst = np.full(dimension, 100 / 2.0 * limit / np.sqrt(dimension)) + 0.5  # in steps
        assert np.linalg.norm(worst) <= 100 + 1e-9
        assert limit < 2.0


@pytest.mark.parametrize("scale", [5, 4])
def test_a_grid_whose_rounding_reaches_the_clip_norm_is_refused(scale):
    with pytest.raises(FixArgumentsError, match=r"too coarse: rounding 100 numbers.*above 5") as e:
        tightened(0.4, scale, 100)
    enough = int(str(e.value).split("grid_scale above ")[1].split(",")[0])
    assert 0 < tightened(0.4, enough + 1, 100) < 0.4


def test_numbers_go_to_the_nearest_multiple():
    got = on_grid(jnp.array([0.0, 0.24, -0.26, 1.0, 2.5]), 5.0, 10)  # steps of 0.5
    assert got.dtype == jnp.int64
    assert got.tolist() == [0, 0, -1, 2, 5]


def test_each_contribution_is_whole_and_within_the_bound():
    limit = tightened(1.0, SCALE, 3)
    for row in ROWS:
        got = np.asarray(summed(row[None]))
        assert got.dtype == np.int64
        assert np.linalg.norm(got) <= SCALE
        exact = row * min(1.0, limit / np.linalg.norm(row.astype(np.float64)))
        np.testing.assert_allclose(got, SCALE * exact, atol=0.51)


@pytest.mark.parametrize("clip_norm", [0.3, 5.0, 1e-6, 1e6])
def test_the_norm_of_the_integers_is_at_most_the_scale_for_every_clip_norm(clip_norm):
    # As in JAX Privacy: noise that is a multiple of the scale fits every clip norm.
    rows = ROWS * np.float32(10 * clip_norm)
    fn = clipped_fun(lambda x: x[0], l2_clip_norm=clip_norm, grid_scale=SCALE)
    assert fn.l2_norm_bound == SCALE
    for row in rows:
        got = np.asarray(fn(row[None]), np.float64)
        assert 0.99 * SCALE <= np.linalg.norm(got) <= SCALE
        exact = row * clip_norm / np.linalg.norm(row.astype(np.float64))
        np.testing.assert_allclose(got * clip_norm / SCALE, exact, atol=2 * clip_norm / SCALE)


def test_the_sum_is_exact_in_every_order_and_every_piece():
    whole = np.asarray(summed(ROWS))
    assert np.array_equal(whole, sum(np.asarray(summed(row[None])) for row in ROWS))
    assert np.array_equal(whole, summed(ROWS[::-1].copy()))
    assert np.array_equal(whole, summed(ROWS, microbatch_size=2))


def test_gradients_are_summed_on_the_grid_without_rounding():
    def loss(w, x):
        return jnp.mean(x @ w)

    fn = clipped_grad(loss, l2_clip_norm=1.0, grid_scale=SCALE)
    got = fn(jnp.ones(3, jnp.float32), ROWS)
    assert got.dtype == jnp.int64 and np.array_equal(got, summed(ROWS))
    assert fn.rounding_bound(1024) == 0.0
    assert fn.l2_norm_bound == fn.sensitivity() == SCALE


def test_examples_that_are_padding_or_not_finite_add_nothing():
    rows = ROWS.copy()
    rows[1], rows[4, 0] = np.nan, np.inf
    fn = clipped_fun(lambda x: x[0], l2_clip_norm=1.0, grid_scale=SCALE)
    padding = np.arange(8) == 2
    expected = summed(ROWS[[0, 3, 5, 6, 7]])
    assert np.array_equal(fn(rows, is_padding_example=padding), expected)


def test_a_grid_too_coarse_for_the_gradient_is_refused_when_it_is_called():
    fn = clipped_fun(lambda x: x[0], l2_clip_norm=1.0, grid_scale=1)
    with pytest.raises(FixArgumentsError, match="grid_scale=1 is too coarse: rounding 16 numbers"):
        fn(np.zeros((1, 16), np.float32))
