"""Options that change the privacy guarantee: what is refused, and what bound the others give."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bevel import clipped_fun, clipped_grad
from bevel.clipping.options import Clip
from bevel.errors import FixArgumentsError

ROWS = np.array([[3.0, 4.0], [0.3, 0.4]], np.float32)  # norms 5 and 0.5


def bound(norm, **options):
    return clipped_fun(lambda x: x, l2_clip_norm=norm, **options).l2_norm_bound


@pytest.mark.parametrize("make", [clipped_grad, clipped_fun])
@pytest.mark.parametrize(
    "norm, message",
    [
        (-1.0, "l2_clip_norm=-1.0: the clip norm is a length, so pass a number >= 0"),
        (float("nan"), "l2_clip_norm=nan: .* pass a number >= 0"),
        ({"w": 1.0, "b": -2.0}, "l2_clip_norm=-2.0"),
        ("1.0", "has the leaf '1.0': pass a number, or a tree of numbers"),
        (True, "has the leaf True: pass a number"),
        (np.ones(2), "has the leaf array.*a prefix of the parameters"),
        (jnp.ones((1,)), "has the leaf .*: pass a number"),
        ({}, "l2_clip_norm is an empty tree: pass a number, or one per group"),
        (None, "l2_clip_norm is an empty tree"),
    ],
)
def test_a_clip_norm_that_is_no_length_is_refused(make, norm, message):
    with pytest.raises(FixArgumentsError, match=message):
        make(lambda p, x: x, l2_clip_norm=norm)


@pytest.mark.parametrize("norm", [1j, object()], ids=["complex", "object"])
def test_a_clip_norm_that_is_no_number_is_refused_like_a_string(norm):
    with pytest.raises(FixArgumentsError, match="pass a number"):
        Clip.checked(norm)


@pytest.mark.parametrize("norm", [2, 2.0, np.float32(2), np.array(2.0), jnp.array(2.0)])
def test_every_kind_of_number_is_a_clip_norm(norm):
    (value,) = Clip.checked(norm).norms
    assert type(value) is float and value == 2.0


@pytest.mark.parametrize("value", [0, 0.0, -4.0, float("nan"), float("inf")])
def test_a_normalizer_that_is_not_positive_is_refused(value):
    with pytest.raises(FixArgumentsError, match=r"normalize_by=.*a positive number"):
        bound(1.0, normalize_by=value)


@pytest.mark.parametrize("value", [0.0, -0.1, float("nan"), float("inf")])
def test_a_gamma_that_is_not_positive_is_refused(value):
    with pytest.raises(FixArgumentsError, match=r"automatic_gamma=.*such as 0\.01"):
        bound(1.0, automatic_gamma=value)


@pytest.mark.parametrize("name", ["normalize_by", "automatic_gamma"])
def test_an_option_that_is_no_number_is_refused(name):
    with pytest.raises(FixArgumentsError, match=name):
        bound(1.0, **{name: "4"})


def test_an_engine_that_does_not_exist_is_refused():
    with pytest.raises(FixArgumentsError, match="engine='fast': write 'auto', or 'vmap'"):
        clipped_fun(lambda x: x, engine="fast")


@pytest.mark.parametrize("size", [0, -2, 1.5, "2"])
def test_a_microbatch_size_that_is_no_count_is_refused(size):
    with pytest.raises(FixArgumentsError, match=r"microbatch_size=.*pass an integer of at least 1"):
        clipped_fun(lambda x: x[0], microbatch_size=size)(ROWS)


def test_a_traced_clip_norm_is_refused_without_rescaling():
    with pytest.raises(FixArgumentsError, match=r"is traced.*Pass rescale_to_unit_norm=True"):
        jax.eval_shape(lambda c: clipped_fun(lambda x: x[0], l2_clip_norm=c)(ROWS), 1.0)


def test_a_traced_clip_norm_works_with_rescaling_and_its_bound_is_one():
    bounds = []

    @jax.jit
    def run(norm):
        fn = clipped_fun(lambda x: x[0], l2_clip_norm=norm, rescale_to_unit_norm=True)
        bounds.append(fn.l2_norm_bound)
        return fn(ROWS)

    np.testing.assert_allclose(run(1.0), ROWS[0] / 5 + ROWS[1], rtol=1e-5)
    np.testing.assert_allclose(run(10.0), ROWS.sum(0) / 10, rtol=1e-5)
    assert bounds == [1.0]  # traced once, for both norms


@pytest.mark.parametrize("scale", [0, -3, 1.5, True, "8"])
def test_a_grid_that_is_no_positive_whole_number_is_refused(scale):
    with (
        jax.enable_x64(True),
        pytest.raises(FixArgumentsError, match=r"grid_scale=.*pass an integer of at least 1"),
    ):
        bound(1.0, grid_scale=scale)


@pytest.mark.parametrize(
    "options", [{"normalize_by": 2.0}, {"rescale_to_unit_norm": True}, {"automatic_gamma": 0.1}]
)
def test_a_grid_with_options_that_divide_is_refused(options):
    with (
        jax.enable_x64(True),
        pytest.raises(FixArgumentsError, match=r"sums integers.*divide after the noise"),
    ):
        bound(1.0, grid_scale=100, **options)


def test_a_grid_takes_one_clip_norm():
    with jax.enable_x64(True), pytest.raises(FixArgumentsError, match="one l2_clip_norm, not a"):
        bound({"a": 1.0, "b": 1.0}, grid_scale=100)


def test_a_grid_needs_64_bit_integers():
    with pytest.raises(FixArgumentsError, match=r"jax.config.update\('jax_enable_x64', True\)"):
        bound(1.0, grid_scale=100)
    with jax.enable_x64(True):
        assert bound(1.5, grid_scale=100) == 100.0
        assert bound(1.5, grid_scale=np.int64(100)) == 100.0
        for clip_norm in (0.0, float("inf")):
            with pytest.raises(FixArgumentsError, match="positive, finite number"):
                bound(clip_norm, grid_scale=100)


@pytest.mark.parametrize(
    "norm, options, expected",
    [
        (0.0, {}, 0.0),
        (2.5, {}, 2.5),
        ({"a": 3.0, "b": [4.0]}, {}, 5.0),
        (2.5, {"rescale_to_unit_norm": True}, 1.0),
        ({"a": 3.0, "b": 4.0}, {"rescale_to_unit_norm": True}, math.sqrt(2)),
        (2.5, {"normalize_by": 10.0}, 0.25),
        ([3.0, 4.0], {"normalize_by": 10}, 0.5),
        (2.5, {"rescale_to_unit_norm": True, "normalize_by": 4.0}, 0.25),
        (2.5, {"automatic_gamma": 0.1}, 2.5),
    ],
)
def test_the_bound_follows_from_the_options(norm, options, expected):
    assert bound(norm, **options) == pytest.approx(expected, rel=1e-12)
