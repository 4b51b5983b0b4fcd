"""Parameterizations of BLTs: round trips, and validity."""

import jax
import numpy as np
import pytest

from bevel.matrix_factorization.buffered_toeplitz import (
    BufferedToeplitz,
    LossFn,
    Parameterization,
    blt_pair_from_theta_pair,
)

BLT = BufferedToeplitz.from_rational_approx_to_sqrt_x(3)
PARAMETERIZATIONS = {
    "pair": Parameterization.buf_decay_pair(),
    "strategy": Parameterization.strategy_blt(),
}


@pytest.mark.parametrize("name", PARAMETERIZATIONS)
def test_round_trip(name):
    params = PARAMETERIZATIONS[name].params_from_blt(BLT)
    with jax.enable_x64(True):
        blt, inverse = jax.jit(PARAMETERIZATIONS[name].blt_and_inverse_from_params)(params)
    np.testing.assert_allclose(blt.buf_decay, BLT.buf_decay, rtol=1e-10)
    np.testing.assert_allclose(blt.output_scale, BLT.output_scale, rtol=1e-9)
    np.testing.assert_allclose(inverse.buf_decay, BLT.inverse().buf_decay, rtol=1e-9)
    np.testing.assert_allclose(inverse.output_scale, BLT.inverse().output_scale, rtol=1e-9)


@pytest.mark.parametrize("name", PARAMETERIZATIONS)
def test_the_loss_of_parameters(name):
    loss_fn = LossFn.build_closed_form_single_participation(100)
    params = PARAMETERIZATIONS[name].params_from_blt(BLT)
    with jax.enable_x64(True):
        got = jax.jit(PARAMETERIZATIONS[name].get_loss_fn(loss_fn))(params)
    np.testing.assert_allclose(got, loss_fn.penalized_loss(BLT, BLT.inverse()), rtol=1e-9)


def test_any_parameters_of_a_pair_are_a_valid_strategy():
    rng = np.random.default_rng(0)
    loss_fn = LossFn.build_closed_form_single_participation(100)
    with jax.enable_x64(True):
        make = jax.jit(PARAMETERIZATIONS["pair"].blt_and_inverse_from_params)
        for _ in range(20):
            params = {"first": rng.normal(size=1) * 3, "log_gaps": rng.normal(size=5)}
            blt, inverse = jax.tree.map(np.asarray, make(params))
            assert np.all(blt.output_scale > 0) and np.all(inverse.output_scale < 0)
            assert blt.output_scale.sum() < 1
            assert np.isfinite(loss_fn.penalized_loss(blt, inverse))
            coefs = blt.toeplitz_coefs(50)
            assert np.all(np.diff(coefs) < 0) and np.all(coefs > 0)


def test_a_pair_of_decays_is_a_pair_of_inverses():
    blt, inverse = blt_pair_from_theta_pair(np.array([0.9, 0.5]), np.array([0.7, 0.1]))
    np.testing.assert_allclose(blt.materialize(9) @ inverse.materialize(9), np.eye(9), atol=1e-15)
    np.testing.assert_allclose(blt.inverse().buf_decay, [0.7, 0.1], rtol=1e-12)
    assert blt.output_scale.sum() == pytest.approx(0.9 + 0.5 - 0.7 - 0.1)


def test_decays_at_the_edges_become_finite_parameters():
    edge = BufferedToeplitz.build([1.0, 0.5], [0.9, 0.4])  # the inverse has a negative decay
    params = PARAMETERIZATIONS["pair"].params_from_blt(edge)
    assert all(np.all(np.isfinite(x)) for x in params.values())
