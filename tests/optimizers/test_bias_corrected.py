"""DP-Adam equals Adam without noise, and is unbiased on average with noise."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bevel.errors import FixArgumentsError
from bevel.optimizers import dp_adam, scale_by_dp_adam

D, STEPS, STDDEV = 2_000, 1_500, 0.7
# Constant gradients: half of the coordinates are well below the noise, half far below.
GRADIENT = np.where(np.arange(D) < D // 2, 0.5, -0.25).astype(np.float32)
COEFFICIENTS = (-0.6) ** np.arange(8)  # first column of a Toeplitz noising matrix


def white(key):
    return np.float32(STDDEV) * jax.random.normal(key, (STEPS, D))


def correlated(key):
    """C^-1 z, and the row norms of C^-1."""
    z, matrix = white(key), np.zeros((STEPS, STEPS), np.float32)
    for offset, value in enumerate(COEFFICIENTS):
        matrix += np.diag(np.full(STEPS - offset, value, np.float32), -offset)
    return jnp.asarray(matrix) @ z, np.linalg.norm(matrix, axis=1)


def directions(optimizer, gradients):
    """The updates after the first 500 steps, and the last state."""

    def step(state, gradient):
        update, state = optimizer.update(gradient, state)
        return state, update

    state, updates = jax.lax.scan(step, optimizer.init(gradients[0]), gradients)
    return np.asarray(updates[500:]), state


def second_moment(state, stddev_of_step):
    """The corrected second moments, and the weighted average of the noise variance."""
    weights = 0.999 ** np.arange(STEPS - 1, -1, -1, dtype=float)
    noise = np.sum(weights * stddev_of_step**2) / weights.sum()
    return np.asarray(state.nu, float) / (1 - 0.999**STEPS) - noise, noise


@pytest.mark.parametrize("eps_root", [0.0, 1e-3])
@pytest.mark.parametrize("floor", [0.05, 10.0])
def test_without_noise_it_is_adam(eps_root, floor):
    options = {"b1": 0.8, "b2": 0.99, "eps": 1e-6, "eps_root": eps_root}
    ours, plain = dp_adam(0.1, noise_stddev=0, floor=floor, **options), optax.adam(0.1, **options)
    params = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}
    state, expected_state = ours.init(params), plain.init(params)
    for seed in range(20):
        grads = jax.tree.map(
            lambda x, s=seed: 1e-3 * jax.random.normal(jax.random.key(s), x.shape), params
        )
        grads["b"] = jnp.zeros(2)
        updates, state = ours.update(grads, state, params)
        with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes, ours does not
            expected, expected_state = plain.update(grads, expected_state, params)
        jax.tree.map(np.testing.assert_array_equal, updates, expected)


def test_second_moments_are_those_of_the_gradient_on_average():
    noised = GRADIENT[None] + white(jax.random.key(0))
    optimizer = scale_by_dp_adam(noise_stddev=STDDEV)
    _, state = directions(optimizer, noised)
    corrected, noise = second_moment(state, np.full(STEPS, STDDEV))
    np.testing.assert_allclose(noise, STDDEV**2, rtol=1e-12)
    np.testing.assert_allclose(state.noise_nu / (1 - 0.999**STEPS), noise, rtol=1e-4)
    for half in (slice(0, D // 2), slice(D // 2, D)):
        error = corrected[half] - GRADIENT[half] ** 2
        standard_error = error.std() / np.sqrt(error.size)
        assert abs(error.mean()) < 4 * standard_error < 0.1 * GRADIENT[half][0] ** 2
        # Without the correction, the mean is off by hundreds of standard errors.
        assert abs(error.mean() + noise) > 100 * standard_error


@pytest.mark.parametrize("kind", ["white", "correlated"])
def test_updates_are_those_of_adam_without_noise_on_average(kind):
    key = jax.random.key(1)
    noise, rows = (white(key), None) if kind == "white" else correlated(key)
    noised = GRADIENT[None] + noise
    ours, _ = directions(scale_by_dp_adam(noise_stddev=STDDEV, row_norms=rows), noised)
    with jax.numpy_dtype_promotion("standard"):
        plain, _ = directions(optax.scale_by_adam(), noised)
        truth, _ = directions(optax.scale_by_adam(), jnp.broadcast_to(GRADIENT, noised.shape))
    for half in (slice(0, D // 2), slice(D // 2, D)):
        expected = truth[:, half].mean()
        assert abs(ours[:, half].mean() / expected - 1) < 0.12
        assert plain[:, half].mean() / expected < 0.6


def test_row_norms_give_the_variance_of_correlated_noise():
    noise, rows = correlated(jax.random.key(2))
    noised = GRADIENT[None] + noise
    _, state = directions(scale_by_dp_adam(noise_stddev=STDDEV, row_norms=rows), noised)
    corrected, variance = second_moment(state, STDDEV * rows)
    np.testing.assert_allclose(state.noise_nu / (1 - 0.999**STEPS), variance, rtol=1e-4)
    error = corrected - GRADIENT**2
    standard_error = error.std() / np.sqrt(D)
    assert abs(error.mean()) < 4 * standard_error
    # With the variance of z instead it would be far off.
    assert abs(error.mean() + variance - STDDEV**2) > 100 * standard_error


def test_changing_variances_are_averaged_like_second_moments():
    rows = np.asarray([1.0, 3.0, 0.5, 2.0])
    optimizer = scale_by_dp_adam(noise_stddev=0.1, row_norms=rows, b2=0.7, b1=0.0, eps=0.0)
    state = optimizer.init(jnp.ones(2))
    squares, variance = 0.0, 0.0
    for t in range(4):
        gradient = np.asarray([1.0 + t, 0.001], np.float32)
        update, state = optimizer.update(jnp.asarray(gradient), state)
        squares = 0.7 * squares + 0.3 * gradient.astype(float) ** 2
        variance = 0.7 * variance + 0.3 * (0.1 * rows[t]) ** 2
        nu, noise = squares / (1 - 0.7 ** (t + 1)), variance / (1 - 0.7 ** (t + 1))
        expected = gradient / np.sqrt(np.maximum(nu - noise, 0.05 * noise))
        np.testing.assert_allclose(update, expected, rtol=1e-5)
        assert nu[1] < noise  # the second coordinate is at the floor


def test_steps_beyond_the_rows_give_nan():
    for rows in ([1.0], [1.0, 2.0]):
        optimizer = scale_by_dp_adam(noise_stddev=0.1, row_norms=rows)
        state = optimizer.init(jnp.ones(2))
        for _ in rows:
            update, state = optimizer.update(jnp.ones(2), state)
            assert np.isfinite(update).all()
        update, _ = jax.jit(optimizer.update)(jnp.ones(2), state)
        assert np.isnan(update).all()


def test_gradients_of_noise_alone_stay_bounded():
    noise = white(jax.random.key(3))
    ours, _ = directions(scale_by_dp_adam(noise_stddev=STDDEV), noise)
    assert np.isfinite(ours).all()
    # The mean of 10 draws is below 1.6 standard deviations here; divide by sqrt(floor).
    assert np.abs(ours).max() < 1.6 / np.sqrt(0.05)


@pytest.mark.parametrize("mu_dtype", [None, jnp.bfloat16])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_parameters_of_low_precision_have_moments_in_float32(dtype, mu_dtype):
    optimizer = scale_by_dp_adam(noise_stddev=0.5, mu_dtype=mu_dtype)
    params = {"w": jnp.ones(3, jnp.bfloat16)}
    state = optimizer.init(params)
    kinds = jax.tree.map(lambda x: x.dtype, state)
    for _ in range(2):
        updates, state = optimizer.update({"w": jnp.ones(3, dtype)}, state, params)
        assert updates["w"].dtype == state.nu["w"].dtype == jnp.float32
        assert state.mu["w"].dtype == (mu_dtype or jnp.float32)
        assert jax.tree.map(lambda x: x.dtype, state) == kinds  # so that a scan can carry the state
        assert np.isfinite(updates["w"]).all()


def test_learning_rate_schedules_work():
    optimizer = dp_adam(optax.linear_schedule(0.0, 1.0, 10), noise_stddev=0.0)
    update, _ = optimizer.update(jnp.ones(2), optimizer.init(jnp.ones(2)), value=3.0)
    np.testing.assert_array_equal(update, jnp.zeros(2))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"noise_stddev": -1.0}, "noise_stddev=-1.0"),
        ({"noise_stddev": float("nan")}, "noise_stddev=nan"),
        ({"noise_stddev": float("inf")}, "noise_stddev=inf"),
        ({"floor": 0.0}, "floor=0.0"),
        ({"b1": 1.0}, "b1=1.0"),
        ({"b2": -0.1}, "b2=-0.1"),
        ({"row_norms": np.eye(3)}, "one finite number per step"),
        ({"row_norms": []}, "one finite number per step"),
        ({"row_norms": [1.0, np.nan]}, "one finite number per step"),
        ({"row_norms": [1.0, -1.0]}, "one finite number per step"),
    ],
)
def test_bad_arguments_are_rejected(options, message):
    with pytest.raises(FixArgumentsError, match=message):
        scale_by_dp_adam(**{"noise_stddev": 1.0, **options})
