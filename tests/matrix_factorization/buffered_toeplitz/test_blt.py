"""BLTs, compared with their Toeplitz matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bevel.errors import FixArgumentsError
from bevel.matrix_factorization import buffered_toeplitz, toeplitz
from bevel.matrix_factorization.buffered_toeplitz import BufferedToeplitz

N = 12
BLT = BufferedToeplitz.build([0.5, 0.9, 0.2], [0.25, 0.125, 0.0625])
RATIONAL = BufferedToeplitz.from_rational_approx_to_sqrt_x


def test_coefficients_are_sums_of_decays():
    expected = [1.0, *(0.25 * 0.5**k + 0.125 * 0.9**k + 0.0625 * 0.2**k for k in range(N - 1))]
    np.testing.assert_allclose(BLT.toeplitz_coefs(N), expected, rtol=1e-15)
    np.testing.assert_array_equal(BLT.toeplitz_coefs(1), [1.0])
    np.testing.assert_array_equal(
        BLT.materialize(N), toeplitz.materialize_lower_triangular(BLT.toeplitz_coefs(N))
    )


def test_the_largest_decay_comes_first():
    np.testing.assert_array_equal(BLT.buf_decay, [0.9, 0.5, 0.2])
    np.testing.assert_array_equal(BLT.output_scale, [0.125, 0.25, 0.0625])
    assert BLT.dtype == np.float64


@pytest.mark.parametrize("buffers", [0, 1, 3, 6])
def test_the_inverse_is_a_blt(buffers):
    blt = RATIONAL(buffers)
    inverse = blt.inverse()
    np.testing.assert_allclose(blt.materialize(N) @ inverse.materialize(N), np.eye(N), atol=1e-14)
    inverse_twice = inverse.inverse()
    np.testing.assert_allclose(inverse_twice.buf_decay, blt.buf_decay, rtol=1e-10)
    np.testing.assert_allclose(inverse_twice.output_scale, blt.output_scale, rtol=1e-9)
    merged = np.stack([blt.buf_decay, inverse.buf_decay], axis=1).reshape(-1)
    assert np.all(np.diff(merged) < 0) and np.all(inverse.output_scale < 0)
    assert np.all(inverse.buf_decay > 0)
    assert blt.pillutla_score() < 1


def test_the_inverse_of_traced_numbers():
    with jax.enable_x64(True):
        got = jax.jit(lambda blt: blt.inverse())(BLT)
        np.testing.assert_allclose(got.buf_decay, BLT.inverse().buf_decay, rtol=1e-12)
        np.testing.assert_allclose(got.output_scale, BLT.inverse().output_scale, rtol=1e-12)


def test_a_score_above_one_gives_negative_decays():
    blt = BufferedToeplitz.build([0.9], [0.95])
    assert blt.pillutla_score() > 1
    assert blt.inverse().buf_decay[0] == pytest.approx(-0.05)


def test_the_rational_start_is_near_the_square_root():
    exact = toeplitz.optimal_max_error_strategy_coefs(N)
    errors = []
    for buffers, distance in ((4, 1.6), (8, 0.8), (16, 0.4)):
        coefs = RATIONAL(
            buffers, buf_decay_scale=distance, buf_decay_shift=-round(1.6 / distance)
        ).toeplitz_coefs(N)
        errors.append(np.abs(coefs - exact)[1:].max())
    assert errors[0] < 0.12 and errors[2] < errors[0]
    wide = RATIONAL(40, buf_decay_scale=0.8, buf_decay_shift=-16)
    np.testing.assert_allclose(wide.toeplitz_coefs(N), exact, atol=2e-4)


def test_options_of_the_rational_start():
    assert RATIONAL(6, max_buf_decay=0.9).buf_decay.max() == 0.9
    assert RATIONAL(6, max_pillutla_score=0.5).pillutla_score() == pytest.approx(0.5)
    assert RATIONAL(0).buf_decay.shape == (0,)
    loose = RATIONAL(6, max_pillutla_score=2.0)
    np.testing.assert_array_equal(loose.output_scale, RATIONAL(6).output_scale)


def test_streams_are_those_of_the_matrix():
    with jax.enable_x64(True):
        forward = np.asarray(BLT.as_streaming_matrix().materialize(N))
        backward = np.asarray(BLT.inverse_as_streaming_matrix().materialize(N))
    np.testing.assert_allclose(forward, BLT.materialize(N), rtol=1e-14)
    np.testing.assert_allclose(backward @ forward, np.eye(N), atol=1e-14)


def test_gaps():
    assert buffered_toeplitz.min_buf_decay_gap(BLT.buf_decay) == pytest.approx(0.3)
    assert buffered_toeplitz.min_buf_decay_gap(np.array([0.4])) == np.inf


# Bad input.


@pytest.mark.parametrize(
    "decay, scale, message",
    [
        ([0.5], [0.5, 0.5], "one number for each buffer"),
        ([[0.5]], [[0.5]], "one number for each buffer"),
        (0.5, 0.5, "one number for each buffer"),
        ([np.nan], [0.5], r"buf_decay\[0\]"),
        ([0.5], [np.inf], r"output_scale\[0\]"),
    ],
)
def test_bad_numbers(decay, scale, message):
    with pytest.raises(FixArgumentsError, match=message):
        BufferedToeplitz.build(decay, scale)


def test_scales_of_both_signs_have_no_inverse():
    with pytest.raises(FixArgumentsError, match="all scales are positive, or all negative"):
        BufferedToeplitz.build([0.5, 0.4], [0.1, -0.1]).inverse()


def test_precision_is_checked():
    buffered_toeplitz.check_float64_dtype(BLT)
    with pytest.raises(FixArgumentsError, match="float32"):
        buffered_toeplitz.check_float64_dtype(
            BufferedToeplitz.build([0.5], [0.5], dtype=jnp.float32)
        )


def test_decorators_check_plain_numbers_only():
    decay_checked = buffered_toeplitz.require_buf_decay_less_eq_one(lambda blt: blt.buf_decay)
    scale_checked = buffered_toeplitz.require_output_scale_gt_zero(lambda blt: blt.output_scale)
    invalid = BufferedToeplitz.build([1.5], [-0.5])
    with pytest.raises(FixArgumentsError, match="at most 1"):
        decay_checked(invalid)
    with pytest.raises(FixArgumentsError, match="positive"):
        scale_checked(invalid)
    assert jax.jit(decay_checked)(invalid)[0] == 1.5 and jax.jit(scale_checked)(invalid)[0] == -0.5
    np.testing.assert_array_equal(decay_checked(BLT), BLT.buf_decay)


def test_bad_starts():
    for kwargs in ({"num_buffers": -1}, {"num_buffers": 1.5}):
        with pytest.raises(FixArgumentsError, match="num_buffers"):
            RATIONAL(**kwargs)
    for kwargs in ({"max_buf_decay": 1.5}, {"max_buf_decay": 0.0}, {"buf_decay_scale": 0.0}):
        with pytest.raises(FixArgumentsError, match="pass a decay"):
            RATIONAL(2, **kwargs)
    with pytest.raises(FixArgumentsError, match="n=0"):
        BLT.toeplitz_coefs(0)


def test_matrices_and_inverses_have_the_dtype_of_the_blt():
    narrow = BufferedToeplitz.build([0.5, 0.2], [0.25, 0.125], dtype=jnp.float32)
    wide = BufferedToeplitz.build([0.5, np.float32(0.2)], [0.25, 0.125])
    for blt, dtype in ((narrow, "float32"), (wide, "float64")):
        inverse = blt.inverse()
        assert blt.dtype == inverse.dtype == inverse.output_scale.dtype == dtype
        assert blt.toeplitz_coefs(4).dtype == blt.materialize(4).dtype == dtype
        assert buffered_toeplitz.sensitivity_squared(blt, 9).dtype == np.float64
    np.testing.assert_allclose(narrow.inverse().buf_decay, wide.inverse().buf_decay, rtol=1e-6)
    traced = jax.jit(lambda blt: blt.inverse())(narrow)
    assert traced.dtype == np.float32
    with pytest.raises(FixArgumentsError, match="use float64"):
        buffered_toeplitz.check_float64_dtype(narrow)
