"""L-BFGS in float64, from SciPy and from optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bevel.errors import FixArgumentsError
from bevel.matrix_factorization import optimization
from bevel.matrix_factorization.optimization import jax_enable_x64, optimize

START = {"x": np.array([-1.2, 1.0]), "y": np.array(3.0)}


def rosenbrock(tree):
    x = tree["x"]
    return 100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2 + (tree["y"] - 2) ** 2


def test_the_minimum_is_found_in_float64():
    got = optimize(rosenbrock, START)
    assert got["x"].dtype == np.float64 and type(got["x"]) is np.ndarray
    np.testing.assert_allclose(got["x"], [1, 1], atol=1e-6)
    np.testing.assert_allclose(got["y"], 2, atol=1e-6)


@pytest.mark.parametrize("optimizer", [None, optax.lbfgs()])
def test_the_callback_is_called_after_every_step_and_can_stop(optimizer):
    seen = []

    def callback(info):
        seen.append(info)
        return info.loss < 1e-9

    got = optimize(rosenbrock, START, callback=callback, optimizer=optimizer)
    assert [info.step for info in seen] == list(range(len(seen)))
    assert [info.loss < 1e-9 for info in seen] == [False] * (len(seen) - 1) + [True]
    jax.tree.map(np.testing.assert_array_equal, got, jax.tree.map(np.asarray, seen[-1].params))
    with jax.enable_x64(True):
        for info in seen[::5]:
            loss, gradient = jax.value_and_grad(rosenbrock)(info.params)
            assert float(info.loss) == pytest.approx(float(loss), rel=1e-12)
            jax.tree.map(
                lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), info.grad, gradient
            )


def test_a_loss_with_its_own_gradient():
    def loss_and_grad(x):
        return jnp.sum((x - 3) ** 2), 2 * (x - 3)

    got = optimize(jax.jit(loss_and_grad), np.zeros(3), grad=True)
    np.testing.assert_allclose(got, 3, atol=1e-6)


def test_steps_are_limited():
    seen = []
    optimize(rosenbrock, START, max_optimizer_steps=3, callback=seen.append)
    assert len(seen) == 3
    untouched = optimize(rosenbrock, START, max_optimizer_steps=0)
    jax.tree.map(np.testing.assert_array_equal, untouched, START)


@pytest.mark.parametrize("edge", [1e-3, 0.5, 0.999])
def test_the_line_search_backtracks_from_non_finite_losses(edge):
    # The loss is NaN above 1. Its minimum is below 1, and the first step goes far above.
    def loss(x):
        return jnp.sum(-jnp.log(1 - x)) + jnp.sum(x / (edge - 1))

    got = optimize(loss, np.full(2, -5.0))
    np.testing.assert_allclose(got, edge, rtol=1e-4, atol=1e-4)


def test_a_huge_loss_near_the_start_does_not_stop_the_search():
    def loss(x):
        return jnp.sum(jnp.exp(40 * x) + (x + 1) ** 2 * 1e3)

    got = optimize(loss, np.array([-4.0, -4.5]))
    np.testing.assert_allclose(got, -1, atol=1e-6)


def test_a_start_with_a_non_finite_loss_is_rejected():
    with pytest.raises(FixArgumentsError, match="starting point is nan"):
        optimize(lambda x: jnp.log(x), np.array(-1.0))
    with pytest.raises(FixArgumentsError, match="max_optimizer_steps"):
        optimize(rosenbrock, START, max_optimizer_steps=-1)


def test_functions_run_in_float64_and_return_numpy_arrays():
    @jax_enable_x64
    def dtype_and_value(x):
        y = jnp.asarray(x, float) / 3
        return y.dtype.name, {"y": y, "z": jnp.sum(y)}

    name, tree = dtype_and_value([1.0, 2.0])
    assert name == "float64" and not jax.config.jax_enable_x64
    assert type(tree["y"]) is np.ndarray and type(tree["z"]) is np.float64
    assert tree["z"] == 1.0


def test_traced_arguments_keep_their_precision():
    half = jax_enable_x64(lambda x: jnp.asarray(x, float) / 2)
    assert jax.jit(half)(jnp.ones(2)).dtype == jnp.float32
    assert half(np.ones(2)).dtype == np.float64


def test_arrays_are_created_on_the_cpu():
    @jax_enable_x64
    def platforms():
        return [device.platform for device in jnp.ones(1).devices()]

    assert platforms() == ["cpu"]


def test_without_a_cpu_the_default_device_is_used(monkeypatch):
    def no_cpu(backend):
        raise RuntimeError(f"Unknown backend {backend}")

    monkeypatch.setattr(jax, "local_devices", no_cpu)
    with optimization.on_the_cpu():
        assert jnp.ones(1)[0] == 1


def test_namespace_of_numbers_and_of_tracers():
    assert optimization.namespace(1.0, np.ones(2)) is np
    jax.jit(lambda x: x if optimization.namespace(np.ones(2), x) is jnp else 1 / 0)(1.0)
