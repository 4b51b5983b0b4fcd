"""Derivatives of simulated programs. `test_shard_map.py` compares them with a real mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from bevel.inspection.simulate.derivatives import is_inexact
from bevel.sharding.simulate import simulate_shard_map

X = np.linspace(-1, 1, 8, dtype=np.float32)


ROWS = P("x")


def simulation(body, in_specs=ROWS, out_specs=ROWS):
    return simulate_shard_map(body, mesh={"x": 4}, in_specs=in_specs, out_specs=out_specs)


@jax.custom_vjp
def doubled_backward(x):
    return x


doubled_backward.defvjp(lambda x: (x, None), lambda _, ct: (2 * ct,))


def test_a_rule_for_reverse_mode_is_used_with_integers_and_keys_beside_it():
    def body(x, n, key):
        return doubled_backward(x) * n.astype(x.dtype) + jax.random.normal(key, x.shape)

    f = simulation(body, (P("x"), P("x"), P()))
    n = np.arange(8, dtype=np.int32)
    gradient = jax.grad(lambda x: jnp.sum(f(x, n, jax.random.key(0))))(X)
    np.testing.assert_allclose(gradient, 2 * n)


def test_a_rule_for_reverse_mode_forbids_forward_mode():
    f = simulation(doubled_backward)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(f, (X,), (X,))


def test_gradient_of_one_output_only():
    f = simulation(lambda x: (jnp.sin(x), lax.psum(x, "x")), out_specs=(P("x"), P()))
    np.testing.assert_allclose(jax.grad(lambda x: jnp.sum(f(x)[0]))(X), np.cos(X), rtol=1e-5)


def test_hessian():
    f = simulation(lambda x: lax.psum(jnp.sum(x**3), "x"), out_specs=P())
    np.testing.assert_allclose(jax.hessian(f)(X), np.diag(6 * X), rtol=1e-5, atol=1e-6)


def test_keys_and_integers_have_no_derivative():
    assert is_inexact(1.0) and is_inexact(X)
    assert not is_inexact(1) and not is_inexact(jax.random.key(0))
