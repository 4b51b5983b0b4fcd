"""The loss of a BLT: error times sensitivity, and penalties at the edges."""

import jax
import numpy as np
import pytest

from bevel.errors import FixArgumentsError
from bevel.matrix_factorization import buffered_toeplitz as bt
from bevel.matrix_factorization import toeplitz
from bevel.matrix_factorization.buffered_toeplitz import BufferedToeplitz, LossFn

N = 30
BLT = BufferedToeplitz.from_rational_approx_to_sqrt_x(3)


def expected_loss(error, min_sep, most):
    coefs = BLT.toeplitz_coefs(N)
    errors = toeplitz.per_query_error(strategy_coef=coefs)
    squared = toeplitz.minsep_sensitivity_squared(coefs, min_sep, n=N, max_participations=most)
    return {"max": errors.max(), "mean": errors.mean()}[error] * squared


@pytest.mark.parametrize("error", ["max", "mean"])
@pytest.mark.parametrize("min_sep, most", [(1, 1), (10, None), (4, 3), (1, None)])
def test_the_loss_is_error_times_sensitivity(error, min_sep, most):
    loss_fn = LossFn.build_min_sep(N, error, min_sep, most)
    assert loss_fn.loss(BLT) == pytest.approx(expected_loss(error, min_sep, most), rel=1e-11)


def test_one_participation():
    loss_fn = LossFn.build_closed_form_single_participation(N)
    assert loss_fn.loss(BLT) == pytest.approx(bt.max_loss(BLT, N), rel=1e-12)
    assert (loss_fn.n, loss_fn.max_participations) == (N, 1)


def test_penalties_are_small_inside_and_nan_outside():
    loss_fn = LossFn.build_closed_form_single_participation(N)
    inverse = BLT.inverse()
    penalties = loss_fn.compute_penalties(BLT, inverse)
    assert all(np.isfinite(p) for p in penalties.values())
    plain = loss_fn.loss(BLT)
    assert loss_fn.penalized_loss(BLT, inverse, False) == pytest.approx(plain, rel=1e-6)
    for decay, scale, name in [
        ([1.1], [0.5], "buf_decay_below_one"),
        ([-0.1], [0.5], "buf_decay_positive"),
        ([0.5], [-0.5], "output_scale_positive"),
        ([0.5], [1.5], "second_coef"),
        ([0.5, 0.6], [0.2, 0.2], "buf_decay_gap"),
    ]:
        wrong = BufferedToeplitz(np.array(decay), np.array(scale))
        assert np.isnan(loss_fn.compute_penalties(wrong, inverse)[name])
    flipped = BufferedToeplitz(inverse.buf_decay, -inverse.output_scale)
    assert np.isnan(loss_fn.compute_penalties(BLT, flipped)["inverse_output_scale_negative"])


def test_penalties_have_weights():
    inverse = BLT.inverse()
    plain, weighted = (
        LossFn.build_min_sep(
            N, penalty_strength=0.5, penalty_multipliers=multipliers, max_participations=1
        )
        for multipliers in ({}, {"second_coef": 3.0})
    )
    penalty = plain.compute_penalties(BLT, inverse)["second_coef"]
    difference = weighted.penalized_loss(BLT, inverse) - plain.penalized_loss(BLT, inverse)
    assert difference == pytest.approx(0.5 * 2.0 * penalty)


def test_the_penalized_loss_is_relative_to_the_best():
    loss_fn = LossFn.build_closed_form_single_participation(N)
    root = toeplitz.optimal_max_error_strategy_coefs(N)
    assert loss_fn.approx_optimal_loss == pytest.approx(np.sum(root**2) ** 2, rel=1e-2)
    relative = loss_fn.penalized_loss(BLT, BLT.inverse())
    assert relative == pytest.approx(loss_fn.loss(BLT) / loss_fn.approx_optimal_loss, rel=1e-5)


def test_traced_and_plain_losses_agree():
    loss_fn = LossFn.build_min_sep(N, "mean", 5)
    with jax.enable_x64(True):
        traced = jax.jit(loss_fn.penalized_loss)(BLT, BLT.inverse())
    np.testing.assert_allclose(traced, loss_fn.penalized_loss(BLT, BLT.inverse()), rtol=1e-11)


def test_bad_input():
    with pytest.raises(FixArgumentsError, match="'max' or 'mean'"):
        LossFn.build_min_sep(N, "median")
    with pytest.raises(FixArgumentsError, match="min_sep"):
        LossFn.build_min_sep(N, min_sep=0)
    with pytest.raises(FixArgumentsError, match="n=0"):
        LossFn.build_closed_form_single_participation(0)
    low = BufferedToeplitz.build([0.5], [0.5], dtype=np.float32)
    loss_fn = LossFn.build_closed_form_single_participation(N)
    with pytest.raises(FixArgumentsError, match="float64"):
        loss_fn.loss(low)
    assert np.isfinite(loss_fn.loss(low, skip_checks=True))
