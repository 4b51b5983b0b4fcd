"""The simulation against the real `shard_map` on eight virtual devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from shard_map_programs import PROGRAMS

from bevel.sharding.simulate import simulate_shard_map


def real_mesh(sizes):
    return jax.make_mesh(
        tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes)
    )


def both_ways(program):
    specs = {"in_specs": program.in_specs, "out_specs": program.out_specs, **program.options}
    return (
        jax.shard_map(program.body, mesh=real_mesh(program.mesh), **specs),
        simulate_shard_map(program.body, mesh=program.mesh, **specs),
    )


def is_static(x):
    return isinstance(x, int)


def weights(y):
    return np.cos(np.arange(y.size).reshape(y.shape)).astype(y.dtype)


def results_and_gradient(f, program):
    """What `f` returns, and the gradient of a mix of it, in one compiled program."""
    varied = [i for i, x in enumerate(program.args) if not is_static(x)]

    def run(*values):
        args = list(program.args)
        for i, value in zip(varied, values, strict=True):
            args[i] = value
        outputs = f(*args)
        mix = [jnp.vdot(weights(y), y) for y in jax.tree.leaves(outputs)]
        return sum(mix), outputs

    values = [program.args[i] for i in varied]
    if not program.differentiable:
        return jax.jit(lambda *v: run(*v)[1])(*values), None
    floats = [i for i, v in enumerate(values) if not jnp.issubdtype(jax.tree.leaves(v)[0].dtype, jax.dtypes.prng_key)]
    (_, outputs), gradient = jax.jit(jax.value_and_grad(run, argnums=floats, has_aux=True))(*values)
    return outputs, gradient


def assert_same(found, expected, tolerance=2e-6):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", PROGRAMS)
def test_equals_the_real_one(name):
    program = PROGRAMS[name]
    real, simulation = both_ways(program)
    expected, expected_gradient = results_and_gradient(real, program)
    found, gradient = results_and_gradient(simulation, program)
    tolerance = 1e-2 if "bfloat16" in name else 1e-5
    assert_same(found, expected, tolerance)
    assert_same(gradient, expected_gradient, 10 * tolerance)
