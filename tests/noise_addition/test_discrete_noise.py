"""Discrete noise on the integer sums of `clipped_grad`: exact, and within the stated guarantee."""

import math

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from noise_layouts import AUTO

import bevel
from bevel.errors import FixArgumentsError
from bevel.noise_addition import discrete_gaussian_privatizer, keys, zcdp_rho

SUMS = {"w": np.arange(24, dtype=np.int64).reshape(4, 6)}


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def privatizer(**options):
    return discrete_gaussian_privatizer(**{"stddev": 50, "prng_key": 5, **options})


def test_results_are_integers_and_steps_differ():
    discrete = privatizer()
    first, state = discrete.update(SUMS, discrete.init(SUMS))
    second, state = discrete.update(SUMS, state)
    assert first["w"].dtype == np.int64 and int(state.step) == 2
    assert np.sum(first["w"] == second["w"]) < 4
    again, _ = discrete.update(SUMS, state._replace(step=jnp.uint32(1)))
    np.testing.assert_array_equal(again["w"], second["w"])
    zero = jax.tree.map(np.zeros_like, SUMS)
    noise, _ = discrete.update(zero, discrete.init(SUMS))
    np.testing.assert_array_equal(first["w"], SUMS["w"] + noise["w"])
    assert discrete.record.distribution == "discrete gaussian"
    assert discrete.record.stddev == 50 and not discrete.record.key_is_secret


def test_the_result_may_be_multiplied_by_the_step_of_the_grid():
    whole, _ = privatizer().update(SUMS, privatizer().init(SUMS))
    multiplied = privatizer(grid_step=1 / 8)
    found, _ = multiplied.update(SUMS, multiplied.init(SUMS))
    assert found["w"].dtype == np.float32
    np.testing.assert_array_equal(found["w"], np.asarray(whole["w"]) / 8)


def test_the_mesh_does_not_matter():
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AUTO,) * 2)
    placed = jax.device_put(SUMS, NamedSharding(mesh, P("data", "model")))
    discrete = privatizer()
    found, _ = jax.jit(discrete.update)(placed, discrete.init(placed))
    expected, _ = discrete.update(SUMS, discrete.init(SUMS))
    np.testing.assert_array_equal(found["w"], expected["w"])


def test_from_gradients_to_a_private_sum():
    def loss(w, x):
        return jnp.sum(jnp.tanh(x @ w))

    scale, multiplier, steps = 1000, 2.0, 3
    grad_fn = bevel.clipped_grad(loss, l2_clip_norm=0.5, grid_scale=scale)
    w, x = jnp.ones((6, 4)), np.random.default_rng(0).normal(size=(8, 1, 6))
    total = grad_fn(w, x)
    # The sensitivity, in grid steps, holds for neighbours: rounding to the grid is within it.
    for i in range(8):
        difference = np.asarray(total - grad_fn(w, np.delete(x, i, axis=0)))
        assert sum(int(d) ** 2 for d in difference.ravel()) <= grad_fn.sensitivity() ** 2
    assert grad_fn.sensitivity() == scale
    stddev, step = math.ceil(multiplier * grad_fn.sensitivity()), 0.5 / scale
    discrete = privatizer(stddev=stddev, grid_step=step)
    noised, _ = discrete.update(total, discrete.init(w))
    assert np.max(np.abs(np.asarray(noised) - np.asarray(total) * step)) < 6 * stddev * step
    # Accounted as zCDP: what Gaussian noise of the same multiplier costs.
    rho = zcdp_rho(stddev, grad_fn.sensitivity())
    assert rho == pytest.approx(1 / (2 * multiplier**2))
    epsilon = []
    for event in (dp_accounting.ZCDpEvent(steps * rho), dp_accounting.GaussianDpEvent(multiplier)):
        accountant = dp_accounting.rdp.RdpAccountant()
        accountant.compose(event, steps if "Gaussian" in type(event).__name__ else 1)
        epsilon.append(accountant.get_epsilon(1e-5))
    assert epsilon[0] == pytest.approx(epsilon[1], rel=1e-6)


def test_noise_hides_a_neighbour_as_far_as_it_says():
    # Two neighbouring sums, one coordinate apart by the sensitivity: the losses must not exceed
    # those of rho-zCDP, whose mean at order 1 is rho.
    sensitivity, stddev, size = 30, 60, 20_000
    discrete = privatizer(stddev=stddev)
    zeros = np.zeros(size, np.int64)
    z = np.asarray(discrete.update(zeros, discrete.init(zeros))[0], np.float64)
    losses = ((z - sensitivity) ** 2 - z**2) / (2 * stddev**2)  # exact: both are normalised alike
    rho = zcdp_rho(stddev, sensitivity)
    assert abs(np.mean(losses) - rho) < 5 * np.sqrt(2 * rho / size)
    assert scipy.stats.kstest((losses - rho) / np.sqrt(2 * rho), "norm").pvalue > 1e-4


@pytest.mark.parametrize("stddev", [0, -3, 1.5, float("nan"), "3", True, 2**26 + 1, None])
def test_stddev_must_be_an_integer_number_of_grid_steps(stddev):
    with pytest.raises(FixArgumentsError, match=r"integer number of grid steps.*math.ceil"):
        privatizer(stddev=stddev)


@pytest.mark.parametrize("stddev", [1, 50.0, np.int32(50), 2**26])
def test_integer_stddevs_are_accepted(stddev):
    assert privatizer(stddev=stddev).record.stddev == float(stddev)


@pytest.mark.parametrize("grid_step", [0, -1.5, True, math.inf, math.nan, "1"])
def test_the_step_of_the_grid_is_positive(grid_step):
    with pytest.raises(FixArgumentsError, match="pass l2_clip_norm / grid_scale"):
        privatizer(grid_step=grid_step)


def test_the_product_has_a_floating_point_dtype():
    with pytest.raises(FixArgumentsError, match="dtype=int32: pass a real floating-point dtype"):
        privatizer(grid_step=0.125, dtype=np.int32)


def test_x64_is_needed():
    with jax.enable_x64(False), pytest.raises(FixArgumentsError, match="jax_enable_x64"):
        privatizer()


def test_only_chacha20_keys():
    with pytest.raises(
        FixArgumentsError, match="prng_key is a threefry2x32 key, but discrete noise"
    ):
        privatizer(prng_key=jax.random.key(0))
    assert privatizer(prng_key=None).record.key_is_secret


def test_a_key_is_used_by_one_mechanism_of_any_kind():
    key = keys.new_key()
    discrete = privatizer(prng_key=key)
    discrete.update(SUMS, discrete.init(SUMS))
    gaussian = bevel.noise_addition.gaussian_privatizer(stddev=1.0, prng_key=key)
    with pytest.raises(FixArgumentsError, match="already uses this prng_key"):
        gaussian.reserve_key()


@pytest.mark.parametrize("dtype", [np.float32, np.uint32, np.bool_])
def test_sums_of_other_dtypes_are_refused(dtype):
    g = {"w": np.zeros(3, dtype)}
    with pytest.raises(FixArgumentsError, match=r"\['w'\] has dtype .*clipped_grad\(grid_scale"):
        privatizer().update(g, privatizer().init(g))


def test_a_state_with_buffers_is_refused():
    state = privatizer().init(SUMS)._replace(buffers=(jnp.zeros(3),))
    with pytest.raises(FixArgumentsError, match="another privatizer"):
        privatizer().update(SUMS, state)


@pytest.mark.parametrize("stddev, sensitivity", [(0, 1), (1, -1), (float("nan"), 1), (1, math.inf)])
def test_rho_needs_finite_numbers(stddev, sensitivity):
    with pytest.raises(FixArgumentsError, match="finite numbers"):
        zcdp_rho(stddev, sensitivity)
