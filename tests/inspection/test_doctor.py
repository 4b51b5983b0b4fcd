"""Clean programs have no findings; each check has both sides in its own file."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from meshes import (
    DATA_PARALLEL,
    GRID,
    SHARDED_DATA_PARALLEL,
    TENSOR_PARALLEL,
    loss,
    network,
    on,
    sgd_step,
    two_layers,
)

import bevel
from bevel.inspection.doctor import CHECKS, doctor


def pinned(step, params):
    return jax.jit(step, out_shardings=jax.tree.map(lambda x: x.sharding, params))


PRIVATIZER = bevel.noise_addition.gaussian_privatizer(stddev=1.0, prng_key=jax.random.key(60606))


def private_step(params, x, state):
    grads = bevel.clipped_grad(loss, l2_clip_norm=1.0)(params, x)
    noisy, _ = PRIVATIZER.update(grads, state)
    return jax.tree.map(lambda p, g: p - g, params, noisy)


@pytest.mark.parametrize("layout", [DATA_PARALLEL, TENSOR_PARALLEL])
def test_plain_steps_are_clean(layout):
    params = two_layers(GRID, *layout)
    assert not doctor(sgd_step, params, on(GRID, (16, 32), "data"), mesh=GRID)


@pytest.mark.parametrize("layout", [DATA_PARALLEL, TENSOR_PARALLEL])
def test_private_steps_are_clean(layout):
    params = two_layers(GRID, *layout)
    state = PRIVATIZER.init(jax.tree.map(lambda x: jnp.zeros(x.shape), params))
    step = pinned(private_step, params)
    found = doctor(step, params, on(GRID, (16, 32), "data"), state, mesh=GRID)
    assert not found, str(found)


def test_sharded_data_parallelism_is_noted_only():
    params = two_layers(GRID, *SHARDED_DATA_PARALLEL)
    found = doctor(pinned(sgd_step, params), params, on(GRID, (256, 32), "data"))
    assert {(f.severity, f.problem) for f in found} == {("note", "gathered weight")}


def test_several_problems_come_in_order():
    def step(params, x):
        def loss(params):
            y = network(params, x)
            y = jax.lax.with_sharding_constraint(y, NamedSharding(GRID, P()))
            return jnp.mean(y**2)

        return jax.grad(loss)(params)

    params = two_layers(GRID, *DATA_PARALLEL)
    found = doctor(step, params, on(GRID, (512, 32), "data"), mesh=GRID, large=4 * 512 * 32)
    assert {f.problem for f in found} >= {"costly constraint", "replicated array"}
    assert found.report.collectives
    assert all(f.fix and f.what for f in found)


def test_every_check_has_a_row_in_the_documentation():
    for problem in CHECKS:
        assert f"| {problem}:" in doctor.__doc__
