"""The examples of the documents that bevel starts from, as today's JAX accepts them."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from compare import assert_close
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import bevel as jax_privacy

AUTO = AxisType.Auto


# "Sharp edges: jax.vmap + jax.sharding": a mean is estimated on 8 devices.

MESH = jax.make_mesh((8,), ("data",), axis_types=(AUTO,))
SHARDING = NamedSharding(MESH, P("data"))
PARAM = 4.0


def constrained_loss(param, data):
    data = jax.lax.with_sharding_constraint(data, SHARDING)
    return 0.5 * jnp.mean((data - param) ** 2)


def free_loss(param, data):
    return 0.5 * jnp.mean((data - param) ** 2)


@pytest.fixture(name="data")
def fixture_data():
    return jax.random.normal(jax.random.key(0), (1024,))


def test_the_gradient_of_the_batch_is_the_printed_one(data):
    np.testing.assert_allclose(jax.grad(constrained_loss)(PARAM, data), 4.004355, rtol=1e-6)


@pytest.mark.parametrize("loss", [free_loss, constrained_loss])
def test_without_clipping_the_mean_of_the_examples_is_the_printed_one(loss, data):
    fn = jax_privacy.clipped_grad(loss, l2_clip_norm=jnp.inf, normalize_by=1024)
    np.testing.assert_allclose(fn(PARAM, data), 4.004355, rtol=1e-6)


def test_the_failing_example_works_unchanged(data):
    fn = jax_privacy.clipped_grad(constrained_loss, l2_clip_norm=1.0)
    expected = oracle.clipped_sum(free_loss, PARAM, data, clip_norm=1.0)
    np.testing.assert_allclose(fn(PARAM, data), expected.grad, rtol=1e-5)
    np.testing.assert_allclose(jax.jit(fn)(PARAM, data), expected.grad, rtol=1e-5)


def test_the_failing_example_works_on_explicit_axes(data):
    mesh = jax.make_mesh((8,), ("data",))  # Explicit axes

    def loss(param, data):
        data = jax.sharding.reshard(data, P("data"))
        return 0.5 * jnp.mean((data - param) ** 2)

    with jax.set_mesh(mesh):
        fn = jax_privacy.clipped_grad(loss, l2_clip_norm=jnp.inf, normalize_by=1024)
        np.testing.assert_allclose(fn(PARAM, data), 4.004355, rtol=1e-6)


# "Mixed precision training": what it recommends is the default.


def test_the_recommended_precision_is_the_default():
    params = jnp.ones((8, 4), jnp.bfloat16)
    batch = jax.random.normal(jax.random.key(0), (256, 8), jnp.bfloat16)

    def loss(params, x):
        return jnp.mean((x @ params) ** 2)

    fn = jax_privacy.clipped_grad(loss, l2_clip_norm=1.0)
    grad = fn(params, batch)
    assert grad.dtype == jnp.float32
    assert_close(grad, oracle.clipped_sum(loss, params, batch, clip_norm=1.0).grad, 2e-2)
    low = jax_privacy.clipped_grad(loss, l2_clip_norm=1.0, dtype=jnp.bfloat16)(params, batch)
    assert low.dtype == jnp.bfloat16
    np.testing.assert_array_equal(low, grad.astype(jnp.bfloat16))


# "Distributed arrays": the network, 8 ways over the batch, and 4 x 2 ways over batch and model.

SIZES = (48, 64, 64, 64, 8)


def predict(params, inputs):
    for w, b in params:
        outputs = jnp.dot(inputs, w) + b[None]
        inputs = jnp.maximum(outputs, 0)
    return outputs


def network_loss(params, batch):
    inputs, targets = batch
    return jnp.mean(jnp.sum((predict(params, inputs) - targets) ** 2, axis=-1))


def init_model(batch_size):
    rng = np.random.default_rng(0)
    shapes = list(itertools.pairwise(SIZES))
    params = [
        (jnp.asarray(rng.normal(size=s) / np.sqrt(s[0]), jnp.float32), jnp.ones(s[1]) * 0.1)
        for s in shapes
    ]
    batch = tuple(
        jnp.asarray(rng.normal(size=(batch_size, n)), jnp.float32) for n in (SIZES[0], SIZES[-1])
    )
    return params, batch


LAYOUTS = {
    "8-way batch": ((8,), ("batch",), [(P(), P())] * 4),
    "4-way batch, 2-way model": (
        (4, 2),
        ("batch", "model"),
        [(P(), P()), (P(None, "model"), P("model")), (P("model", None), P()), (P(), P())],
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_network_is_clipped_alike_on_each_mesh(layout):
    shape, names, specs = LAYOUTS[layout]
    params, batch = init_model(16)
    limit = oracle.middle_norm(network_loss, params, batch)
    expected = oracle.clipped_sum(network_loss, params, batch, clip_norm=limit)
    mesh = jax.make_mesh(shape, names, axis_types=(AUTO,) * len(shape))
    placed = jax.device_put(
        params, [tuple(NamedSharding(mesh, spec) for spec in pair) for pair in specs]
    )
    data = jax.device_put(batch, NamedSharding(mesh, P("batch")))
    grad = jax_privacy.clipped_grad(network_loss, l2_clip_norm=limit)(placed, data)
    assert_close(grad, expected.grad, 2e-5)
    for g, p in zip(jax.tree.leaves(grad), jax.tree.leaves(placed), strict=True):
        assert g.sharding.is_equivalent_to(p.sharding, g.ndim)
