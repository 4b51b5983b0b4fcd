"""Optimised BLTs: within 1% of the optimal Toeplitz factor, with few buffers."""

import numpy as np
import pytest

from bevel.errors import FixArgumentsError
from bevel.matrix_factorization import buffered_toeplitz as bt
from bevel.matrix_factorization import toeplitz
from bevel.matrix_factorization.buffered_toeplitz import (
    BufferedToeplitz,
    LossFn,
    Parameterization,
    search,
)


def optimum(n):
    return np.sum(toeplitz.optimal_max_error_strategy_coefs(n) ** 2) ** 2


@pytest.mark.parametrize("n, buffers", [(10**4, 4), (10**6, 5)])
def test_a_few_buffers_are_within_one_percent_of_the_optimal_factor(n, buffers):
    steps = []
    loss_fn = LossFn.build_closed_form_single_participation(n)
    blt, loss = bt.optimize_loss(loss_fn, buffers, callback=lambda info: steps.append(info.step))
    assert optimum(n) < loss < 1.01 * optimum(n)
    assert loss == pytest.approx(loss_fn.loss(blt))
    assert len(steps) <= 150  # each step costs O(log n)
    # A float32 stream uses exactly this matrix.
    for x in (blt.buf_decay, blt.output_scale):
        assert x.dtype == np.float64
        np.testing.assert_array_equal(x, x.astype(np.float32))
    assert blt.buf_decay.max() <= 1 and blt.output_scale.sum() <= 1


def test_one_buffer_is_the_best_of_a_grid():
    n = 40
    loss_fn = LossFn.build_closed_form_single_participation(n)
    _, loss = bt.optimize_loss(loss_fn, 1)
    grid = [
        bt.max_loss(BufferedToeplitz.build([theta], [share * theta]), n)
        for theta in np.linspace(0.9, 0.99, 25)
        for share in np.linspace(0.4, 0.6, 21)
    ]
    assert loss <= min(grid) * (1 + 1e-6)
    assert loss == pytest.approx(min(grid), rel=1e-3)


def test_several_participations():
    n, min_sep, error = 60, 20, "mean"
    blt = bt.optimize(
        n=n, min_sep=min_sep, max_participations=None, error=error, min_buffers=2, max_buffers=2
    )
    loss_fn = LossFn.build_min_sep(n, error, min_sep)
    best = loss_fn.loss(blt)
    assert best < 0.5 * loss_fn.loss(BufferedToeplitz.build([], []))
    rng = np.random.default_rng(0)
    for _ in range(20):
        decay = blt.buf_decay * (1 + 0.01 * rng.normal(size=2))
        scale = blt.output_scale * (1 + 0.01 * rng.normal(size=2))
        assert loss_fn.loss(BufferedToeplitz.build(decay, scale)) >= best * (1 - 1e-6)


def test_buffers_are_added_while_they_help(monkeypatch):
    losses = [12.0, 2.0, 1.5, 1.45, 1.0]
    monkeypatch.setattr(search, "optimize_loss", lambda _, count: (count, losses[count]))
    assert search.optimize(n=50, rtol=1.05) == 2
    assert search.optimize(n=50, rtol=1.05, min_buffers=3, max_buffers=4) == 4
    assert search.optimize(n=50, rtol=1.05, max_buffers=1) == 1


def test_no_buffers_is_independent_noise():
    blt = bt.optimize(n=50, max_buffers=0)
    assert blt.buf_decay.shape == (0,)
    assert LossFn.build_closed_form_single_participation(50).loss(blt) == 50


def test_examples_in_every_step_gain_nothing():
    # All steps of one example add up, so correlated noise cannot help. It must not break either.
    loss_fn = LossFn.build_min_sep(40, "mean", 1)
    _, loss = bt.optimize_loss(loss_fn, 1)
    independent = loss_fn.loss(BufferedToeplitz.build([], []))
    assert loss == pytest.approx(independent, rel=1e-2)


def test_starts_and_parameterizations_find_the_same_optimum():
    start = BufferedToeplitz.build([0.9, 0.4], [0.2, 0.2])
    assert bt.get_init_blt(2, start) is start
    assert len(bt.get_init_blt().buf_decay) == 3
    loss_fn = LossFn.build_closed_form_single_participation(50)
    from_start = bt.optimize_loss(loss_fn, 2, init_blt=start)[1]
    other = bt.optimize_loss(loss_fn, 2, parameterization=Parameterization.strategy_blt())[1]
    assert from_start == pytest.approx(5.3429671544, rel=1e-7)
    assert other == pytest.approx(from_start, rel=1e-7)


def test_bad_input():
    loss_fn = LossFn.build_closed_form_single_participation(50)
    for call, message in [
        (lambda: bt.optimize(n=0), "n=0"),
        (lambda: bt.optimize(n=5, min_sep=0), "min_sep"),
        (lambda: bt.optimize(n=5, min_buffers=3, max_buffers=2), "max_buffers"),
        (lambda: bt.optimize(n=5, error="sum"), "error="),
        (lambda: bt.optimize_loss(loss_fn, -1), "num_buffers"),
        (lambda: bt.get_init_blt(1, BufferedToeplitz.build([0.5, 0.4], [0.1, 0.1])), "same number"),
    ]:
        with pytest.raises(FixArgumentsError, match=message):
            call()
