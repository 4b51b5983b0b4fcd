"""Clipping in preconditioned coordinates: the inverse transform, and the bound."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bevel
from bevel.errors import FixArgumentsError
from bevel.optimizers import scale_then_privatize

# optax mixes dtypes in Adam's bias correction.
pytestmark = pytest.mark.usefixtures("standard_promotion")

PARAMS = {"w": jnp.zeros((2, 3)), "b": jnp.zeros(2)}


@pytest.fixture
def standard_promotion():
    with jax.numpy_dtype_promotion("standard"):
        yield


def grads(seed, dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(seed), 2)
    return {
        "w": jax.random.normal(keys[0], (2, 3), dtype),
        "b": jax.random.normal(keys[1], (2,), dtype),
    }


def warm(optimizer, steps=3):
    """A state with second moments."""
    state = optimizer.init(PARAMS)
    for seed in range(steps):
        _, state = optimizer.update(grads(seed), state, PARAMS)
    return state


def test_gradients_are_divided_by_the_denominator_of_adam():
    optimizer = scale_then_privatize(optax.adam(0.1), eps=1e-3, eps_root=1e-4)
    state = warm(optimizer)
    scaled = optimizer.pre_clipping_transform(state)(grads(9))
    nu = optax.tree_utils.tree_get(state, "nu")
    assert max(map(np.max, jax.tree.leaves(nu))) > 0
    for name, value in grads(9).items():
        expected = np.asarray(value, float) / (np.sqrt(np.asarray(nu[name], float) + 1e-4) + 1e-3)
        np.testing.assert_allclose(scaled[name], expected, rtol=1e-5)


def test_the_inverse_undoes_it():
    optimizer = scale_then_privatize(optax.adam(0.1))
    transform = optimizer.pre_clipping_transform(warm(optimizer))
    for there, back in [(False, True), (True, False)]:
        result = transform(transform(grads(9), inverse=there), inverse=back)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), result, grads(9))


@pytest.mark.parametrize("base", [optax.adam(0.1), optax.rmsprop(0.1), optax.adamw(0.1)])
def test_without_clipping_and_noise_it_is_the_base_optimizer(base):
    optimizer = scale_then_privatize(base, eps=1e-2)
    state, plain = optimizer.init(PARAMS), base.init(PARAMS)
    for seed in range(4):
        scaled = optimizer.pre_clipping_transform(state)(grads(seed))
        updates, state = optimizer.update(scaled, state, PARAMS)
        expected, plain = base.update(grads(seed), plain, PARAMS)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7), updates, expected
        )


def loss(params, batch):
    x, y = batch
    return jnp.mean((x @ params["w"].T + params["b"][None] - y) ** 2)


def test_each_example_is_bounded_in_the_scaled_coordinates():
    optimizer = scale_then_privatize(optax.adam(0.1), eps=1e-2)
    state = warm(optimizer)
    batch = (jax.random.normal(jax.random.key(1), (5, 3)), jnp.ones((5, 2)))

    @jax.jit
    def clipped_sum(params, state, batch):
        transform = optimizer.pre_clipping_transform(state)
        clipped = bevel.clipped_grad(loss, l2_clip_norm=0.5, pre_clipping_transform=transform)
        return clipped(params, batch)

    def oracle(state):
        transform = optimizer.pre_clipping_transform(state)
        total = jax.tree.map(jnp.zeros_like, PARAMS)
        for i in range(5):
            one = jax.tree.map(lambda x, i=i: x[i : i + 1], batch)
            scaled = transform(jax.grad(loss)(PARAMS, one))
            norm = np.sqrt(sum(np.sum(np.square(x)) for x in jax.tree.leaves(scaled)))
            factor = min(1.0, 0.5 / norm)
            total = jax.tree.map(lambda t, s, f=factor: t + np.float32(f) * s, total, scaled)
        return total

    # The second state has the same shapes: no value of the first may be cached.
    for current in (state, warm(optimizer, steps=1)):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6),
            clipped_sum(PARAMS, current, batch),
            oracle(current),
        )


def test_low_precision_is_scaled_in_float32():
    optimizer = scale_then_privatize(optax.adam(0.1))
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), PARAMS)
    _, state = optimizer.update(grads(0, jnp.bfloat16), optimizer.init(half), half)
    scaled = optimizer.pre_clipping_transform(state)(grads(1, jnp.bfloat16))
    assert {x.dtype for x in jax.tree.leaves(scaled)} == {jnp.dtype("float32")}
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(scaled))


def test_custom_second_moments():
    optimizer = scale_then_privatize(
        optax.adagrad(0.1),
        eps=1.0,
        extract_preconditioner_from_state_fn=lambda state: state[0].sum_of_squares,
    )
    state = optimizer.init(PARAMS)
    scaled = optimizer.pre_clipping_transform(state)(grads(0))
    start = np.sqrt(optax.adagrad(0.1).init(PARAMS)[0].sum_of_squares["b"]) + 1
    np.testing.assert_allclose(scaled["b"], grads(0)["b"] / start, rtol=1e-6)


@pytest.mark.parametrize(
    "base, count", [(optax.sgd(0.1), 0), (optax.chain(optax.adam(0.1), optax.adam(0.1)), 2)]
)
def test_states_without_exactly_one_nu_are_rejected(base, count):
    optimizer = scale_then_privatize(base)
    with pytest.raises(FixArgumentsError, match=f"has {count} entries `nu`: pass extract"):
        optimizer.pre_clipping_transform(optimizer.init(PARAMS))


@pytest.mark.parametrize("eps, eps_root", [(-1.0, 0.0), (1e-8, -1.0), (float("nan"), 0.0), (0, 0)])
def test_bad_constants_are_rejected(eps, eps_root):
    with pytest.raises(FixArgumentsError, match="eps"):
        scale_then_privatize(optax.adam(0.1), eps=eps, eps_root=eps_root)
