"""Correlated noise is the matrix times the independent draws; invalid matrices are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from noise_layouts import Decaying, decaying

from bevel.errors import FixArgumentsError
from bevel.noise_addition.correlation import DenseMatrix, NoCorrelation, Streamed, correlation_of

LIKES = [jnp.zeros((3, 2)), jnp.zeros(4)]
DRAWS = [np.random.default_rng(0).normal(size=(8, *x.shape)).astype(np.float32) for x in LIKES]


def draw(step):
    return [jnp.asarray(x)[step] for x in DRAWS]


def noise_of(correlation, steps):
    buffers, rows = correlation.init(LIKES), []
    step = jax.jit(lambda i, b: correlation.next(draw, i, b))
    for i in range(steps):
        noise, buffers = step(np.uint32(i), buffers)
        rows.append(noise)
    return [np.stack(leaf) for leaf in zip(*rows, strict=True)]


def lower_triangular(n, bands=None):
    rng = np.random.default_rng(1)
    matrix = np.tril(rng.normal(size=(n, n))) + 2 * np.eye(n)
    return matrix if bands is None else np.triu(matrix, 1 - bands)


def square(n):
    return np.random.default_rng(2).normal(size=(n, n))


@pytest.mark.parametrize(
    "correlation, matrix",
    [
        (NoCorrelation(), np.eye(6)),
        (correlation_of(lower_triangular(6)), lower_triangular(6)),
        (correlation_of(lower_triangular(6, 2)), lower_triangular(6, 2)),
        (correlation_of(decaying(6).tolist()), decaying(6)),
        (correlation_of(Decaying), decaying(6)),
        (correlation_of(square(6)), square(6)),
        (correlation_of(np.triu(square(6))), np.triu(square(6))),
        (correlation_of(np.eye(6)[::-1]), np.eye(6)[::-1]),
        (correlation_of(np.eye(6, k=1) + np.eye(6, k=-5)), np.eye(6, k=1) + np.eye(6, k=-5)),
    ],
    ids=[
        "independent",
        "dense",
        "banded",
        "list",
        "streaming",
        "square",
        "upper",
        "reversed",
        "cycle",
    ],
)
def test_noise_is_the_matrix_times_the_draws(correlation, matrix):
    for got, z in zip(noise_of(correlation, 6), DRAWS, strict=True):
        np.testing.assert_allclose(got, np.tensordot(matrix, z[:6], 1), rtol=1e-5, atol=1e-5)


def test_a_dense_row_draws_only_its_nonzero_columns():
    seen = []

    def counted(step):
        jax.debug.callback(lambda s: seen.append(int(s)), step)
        return draw(step)

    dense = correlation_of(lower_triangular(6, 2))
    dense.next(counted, jnp.uint32(4), ())
    jax.effects_barrier()
    assert sorted(seen) == [3, 4]


def test_past_the_last_row_everything_is_nan():
    dense = correlation_of(lower_triangular(3))
    for step in (3, 4, 2**32 - 1):
        noise, _ = jax.jit(lambda i: dense.next(draw, i, ()))(np.uint32(step))
        assert all(np.all(np.isnan(x)) for x in noise)
    with pytest.raises(FixArgumentsError, match=r"step 3 is out of range: .* has 3 rows"):
        dense.check(LIKES, jnp.uint32(3), ())


@pytest.mark.parametrize(
    "matrix, message",
    [
        (np.ones((2, 3)), r"shape \(2, 3\). Expected 2D and square: pass C\^-1"),
        (np.ones(3), r"shape \(3,\). Expected 2D and square: pass C\^-1"),
        (np.ones((2, 2, 2)), r"shape \(2, 2, 2\). Expected 2D"),
        (1.0, r"shape \(\). Expected 2D"),
        (np.ones((0, 0)), r"shape \(0, 0\)"),
        (np.tril(np.ones((3, 3))) * [[1], [np.nan], [1]], "NaN or infinity"),
        ("toeplitz", "is a str: pass C"),
        (np.eye(2) * 1j, "is a ndarray: pass C"),
    ],
)
def test_invalid_noising_matrices_are_refused(matrix, message):
    with pytest.raises(FixArgumentsError, match=message):
        correlation_of(matrix)


def test_a_row_of_zeros_adds_no_noise_and_warns():
    with pytest.warns(UserWarning, match="row 1 of noising_matrix is zero.*without noise"):
        dense = correlation_of(np.diag([1.0, 0.0, 1.0]))
    for got, z in zip(noise_of(dense, 3), DRAWS, strict=True):
        np.testing.assert_array_equal(got[1], 0)
        np.testing.assert_allclose(got[2], z[2], rtol=1e-6)


def test_an_upper_triangular_matrix_has_the_covariance_and_sensitivity_of_a_lower_one():
    """Why later draws are allowed: a rotation of the draws makes any matrix lower triangular."""
    matrix = square(6)
    rotated, lower = np.linalg.qr(matrix.T)
    lower = lower.T
    assert not np.triu(lower, 1).any() and rotated.shape == (6, 6)
    np.testing.assert_allclose(lower @ lower.T, matrix @ matrix.T, atol=1e-9)
    strategies = [np.linalg.inv(m) for m in (lower, matrix)]
    grams = [C.T @ C for C in strategies]
    np.testing.assert_allclose(*grams, rtol=1e-6)


def test_a_traced_matrix_is_refused():
    with pytest.raises(FixArgumentsError, match="pass C"):
        jax.eval_shape(lambda m: correlation_of(m) and m, np.eye(2))


def test_a_strategy_matrix_instead_of_its_inverse_is_refused():
    class Strategy:
        def inverse_as_streaming_matrix(self):
            return Decaying

    with pytest.raises(FixArgumentsError, match=r"a strategy matrix C.*inverse_as_streaming"):
        correlation_of(Strategy())
    assert isinstance(correlation_of(Strategy().inverse_as_streaming_matrix()), Streamed)


@pytest.mark.parametrize(
    "correlation", [NoCorrelation(), DenseMatrix(np.eye(3)), Streamed(Decaying)]
)
def test_buffers_of_another_privatizer_are_refused(correlation):
    own = correlation.init(LIKES)
    correlation.check(LIKES, jnp.uint32(0), own)
    others = [Streamed(Decaying).init([jnp.zeros((5, 2)), jnp.zeros(4)]), ((),), ({}, {})]
    if isinstance(correlation, Streamed):
        narrow = jax.tree.map(lambda x: x.astype(np.float16), own)
        others += [(), own[:1], own[::-1], narrow]
    for wrong in others:
        with pytest.raises(FixArgumentsError, match="state belongs to another privatizer"):
            correlation.check(LIKES, jnp.uint32(0), wrong)
