"""Closed forms of BLTs, compared with sums over their coefficients."""

import jax
import numpy as np
import pytest

from bevel.errors import FixArgumentsError
from bevel.matrix_factorization import buffered_toeplitz as bt
from bevel.matrix_factorization import toeplitz
from bevel.matrix_factorization.buffered_toeplitz import BufferedToeplitz

BLTS = {
    "none": BufferedToeplitz.build([], []),
    "one": BufferedToeplitz.build([0.7], [0.5]),
    "root": BufferedToeplitz.from_rational_approx_to_sqrt_x(4),
    "no_decay": BufferedToeplitz.build([1.0, 0.3], [0.01, 0.4]),
    "slow": BufferedToeplitz.build([1 - 1e-9, 0.3], [0.01, 0.4]),
}


@pytest.mark.parametrize("n", [1, 2, 9, 50])
@pytest.mark.parametrize("name", BLTS)
def test_sensitivity_and_errors(name, n):
    blt = BLTS[name]
    coefs, inverse = blt.toeplitz_coefs(n), blt.inverse()
    errors = toeplitz.per_query_error(strategy_coef=coefs, n=n)
    assert bt.sensitivity_squared(blt, n) == pytest.approx(np.sum(coefs**2), rel=1e-12)
    assert bt.max_error(inverse, n) == pytest.approx(errors[-1], rel=1e-11)
    assert bt.mean_error(inverse, n) == pytest.approx(errors.mean(), rel=1e-11)
    for i in range(0, n, 7):
        assert bt.iteration_error(inverse, i) == pytest.approx(errors[i], rel=1e-11)
    expected = np.sum(coefs**2) * errors[-1]
    assert bt.max_loss(blt, n) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("name", BLTS)
@pytest.mark.parametrize("min_sep, most", [(1, None), (1, 4), (3, None), (3, 2), (20, 2), (30, 9)])
def test_separated_participations(name, min_sep, most):
    blt, n = BLTS[name], 20
    got = bt.minsep_sensitivity_squared(blt, n, min_sep, most)
    expected = toeplitz.minsep_sensitivity_squared(
        blt.toeplitz_coefs(n), min_sep, n=n, max_participations=most
    )
    assert got == pytest.approx(expected, rel=1e-12)


def test_terms_of_the_error():
    n, (theta1, theta2), (omega1, omega2) = 30, (0.9, 0.4), (-0.3, -0.2)
    t = np.arange(n)
    terms = [w * (1 - x**t) / (1 - x) for w, x in ((omega1, theta1), (omega2, theta2))]
    got = bt.robust_max_error_Gamma_j(omega1, theta1, n)
    assert got == pytest.approx(terms[0].sum(), rel=1e-13)
    got = bt.robust_max_error_Gamma_jk(omega1, theta1, omega2, theta2, n)
    assert got == pytest.approx((terms[0] * terms[1]).sum(), rel=1e-13)


def test_terms_are_right_at_a_ratio_of_one():
    n = 10**5
    for theta in (1.0, 1 - 1e-15):
        got = bt.robust_max_error_Gamma_jk(1.0, theta, 1.0, theta, n)
        assert got == pytest.approx((n - 1) * n * (2 * n - 1) / 6, rel=1e-9)
        assert bt.robust_max_error_Gamma_j(1.0, theta, n) == pytest.approx(
            n * (n - 1) / 2, rel=1e-9
        )


@pytest.mark.parametrize("n", [10**3, 10**6])
def test_long_runs(n):
    blt = BLTS["root"]
    inverse = blt.inverse()
    coefs = inverse.toeplitz_coefs(n)
    decoder = np.cumsum(coefs)
    assert bt.max_error(inverse, n) == pytest.approx(np.sum(decoder**2), rel=1e-8)
    steps_left = np.arange(n, 0, -1)
    assert bt.mean_error(inverse, n) == pytest.approx(decoder**2 @ steps_left / n, rel=1e-8)
    assert bt.sensitivity_squared(blt, n) == pytest.approx(np.sum(blt.toeplitz_coefs(n) ** 2))


def test_limits():
    blt = BLTS["root"]
    n = 10**9
    assert bt.limit_max_error(blt.inverse()) == pytest.approx(
        bt.max_error(blt.inverse(), n) / n, rel=1e-6
    )
    assert bt.limit_max_loss(blt) == pytest.approx(bt.max_loss(blt, n) / n, rel=1e-6)
    assert bt.limit_max_error(BLTS["none"]) == 1.0


@pytest.mark.parametrize("fn", [bt.max_error, bt.mean_error])
def test_derivatives(fn):
    blt, n = BLTS["root"], 50
    with jax.enable_x64(True):
        gradient = jax.jit(jax.grad(lambda b: fn(b, n)))(blt.inverse())
        weights = BufferedToeplitz(np.ones(4), np.full(4, 0.5))
        step = 1e-6

        def moved(sign):
            return fn(jax.tree.map(lambda x, w: x + sign * step * w, blt.inverse(), weights), n)

        numerical = (moved(1) - moved(-1)) / (2 * step)
        got = sum(
            np.sum(g * w) for g, w in zip(*map(jax.tree.leaves, (gradient, weights)), strict=True)
        )
        np.testing.assert_allclose(got, numerical, rtol=1e-6)


@pytest.mark.parametrize("n", [0, -1, 2.5])
def test_steps_are_counted(n):
    blt = BLTS["one"]
    for call in (
        lambda: bt.sensitivity_squared(blt, n),
        lambda: bt.minsep_sensitivity_squared(blt, n, 1),
        lambda: bt.max_error(blt.inverse(), n),
        lambda: bt.mean_error(blt.inverse(), n),
        lambda: bt.iteration_error(blt.inverse(), n - 1),
        lambda: bt.max_loss(blt, n),
        lambda: bt.robust_max_error_Gamma_j(1.0, 0.5, n),
        lambda: bt.robust_max_error_Gamma_jk(1.0, 0.5, 1.0, 0.5, n),
    ):
        with pytest.raises(FixArgumentsError, match="an integer"):
            call()


def test_growing_buffers_are_refused():
    wild = BufferedToeplitz.build([1.1], [0.1])
    for call in (
        lambda: bt.sensitivity_squared(wild, 5),
        lambda: bt.minsep_sensitivity_squared(wild, 5, 1),
        lambda: bt.max_error(wild, 5),
        lambda: bt.mean_error(wild, 5),
        lambda: bt.iteration_error(wild, 5),
        lambda: bt.limit_max_error(wild),
    ):
        with pytest.raises(FixArgumentsError, match="at most 1"):
            call()


def test_coefficients_that_grow_or_are_negative_have_no_closed_form():
    with pytest.raises(FixArgumentsError, match=r"sums to 1\.29.*upper bound"):
        bt.minsep_sensitivity_squared(BufferedToeplitz.build([0.5, 0.4], [0.7, 0.6]), 9, 3)
    with pytest.raises(FixArgumentsError, match="positive"):
        bt.minsep_sensitivity_squared(BufferedToeplitz.build([0.5], [-0.7]), 9, 3)
    with pytest.raises(FixArgumentsError, match="min_sep"):
        bt.minsep_sensitivity_squared(BLTS["one"], 9, 0)


@pytest.mark.parametrize("name", ["max_error", "mean_error", "iteration_error", "max_loss"])
def test_decays_above_one_are_refused_where_a_loss_is_computed(name):
    growing = BufferedToeplitz.build([1.0 + 1e-6, 0.2], [0.9, 0.2])
    with pytest.raises(FixArgumentsError, match=f"in {name}: all must be at most 1"):
        getattr(bt, name)(growing, 10)
    for limit in ("limit_max_error", "limit_max_loss"):
        with pytest.raises(FixArgumentsError, match=f"in {limit}: all must be at most 1"):
            getattr(bt, limit)(growing)
    with pytest.raises(FixArgumentsError, match="all must be at most 1"):
        bt.LossFn.build_closed_form_single_participation(10).loss(growing)
