"""What a clipped sum means, whatever is inside: traced once, per example, any way it is called."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from bevel import clipped_fun, clipped_grad

RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 3)).astype(np.float32)
PARAMS = {"w": RNG.normal(size=(3, 2)).astype(np.float32), "b": np.zeros(2, np.float32)}
KEY = jax.random.key(3)


def loss(params, x):
    return jnp.mean(jnp.tanh(x @ params["w"] + params["b"][None]) ** 2)


def assert_close(got, expected, rtol=1e-5):
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6), got, expected)


def truth(fun, *args, clip_norm=0.1, **options):
    return oracle.clipped_sum(fun, *args, clip_norm=clip_norm, **options)


@pytest.fixture(scope="module")
def expected():
    return truth(loss, PARAMS, X)


def test_equal_calls_trace_the_loss_once():
    calls = []

    def counted(params, x, mode, scale):
        calls.append((x.shape, mode))
        return scale * loss(params, x) * (2 if mode == "double" else 1)

    fn = clipped_grad(counted, l2_clip_norm=0.1)
    for scale in (1.0, 2.0, 3.0):
        fn(PARAMS, X, "single", scale)
    fn(jax.tree.map(jnp.asarray, PARAMS), jnp.asarray(X + 1), "single", 4.0)
    assert calls == [((1, 3), "single")]
    fn(PARAMS, X, "double", 1.0)
    assert calls[1:] == [((1, 3), "double")]
    fn(PARAMS, X[:2], "single", 1.0)
    assert calls[2:] == [((1, 3), "single")]
    fn(PARAMS, X, "single", 1.0)
    assert len(calls) == 3


@pytest.mark.parametrize("microbatch_size", [None, 2])
def test_a_batch_of_size_zero_gives_zeros_and_empty_outputs(microbatch_size):
    def with_aux(params, x, key):
        return loss(params, x), {"row": x[0], "key": jax.random.key_data(key)}

    fn = clipped_grad(
        with_aux,
        has_aux=True,
        l2_clip_norm=0.1,
        return_values=True,
        return_grad_norms=True,
        prng_argnum=2,
        microbatch_size=microbatch_size,
    )
    grad, aux = fn(PARAMS, X[:0], KEY, is_padding_example=np.zeros(0, bool))
    assert_close(grad, jax.tree.map(np.zeros_like, PARAMS))
    assert all(g.dtype == jnp.float32 for g in jax.tree.leaves(grad))
    assert aux.values.shape == aux.grad_norms.shape == (0,)
    assert aux.aux["row"].shape == (0, 3) and aux.aux["key"].shape == (0, 2)
    assert aux.aux["key"].dtype == jnp.uint32


def test_one_argument_or_several_are_differentiated():
    def split(w, x, b):
        return loss({"w": w, "b": b}, x)

    args = (PARAMS["w"], X, PARAMS["b"])
    both = truth(split, *args, argnums=(0, 2)).grad
    got = clipped_grad(split, argnums=(0, 2), l2_clip_norm=0.1)(*args)
    assert isinstance(got, tuple)
    assert_close(got, both)
    (alone,) = clipped_grad(split, argnums=(2,), l2_clip_norm=0.1)(*args)
    assert_close(alone, truth(split, *args, argnums=2).grad)


def test_outputs_beside_the_sum_are_those_asked_for(expected):
    def with_aux(params, x):
        return loss(params, x), (x[0], jnp.sum(x))

    grad, aux = clipped_grad(with_aux, has_aux=True, l2_clip_norm=0.1)(PARAMS, X)
    assert_close(grad, expected.grad)
    assert aux.values is None and aux.grad_norms is None
    assert_close(aux.aux, (X, X.sum(1)))
    fn = clipped_grad(loss, l2_clip_norm=0.1, return_values=True)
    assert fn.has_aux and not clipped_grad(loss, l2_clip_norm=0.1).has_aux
    values = fn(PARAMS, X)[1]
    assert_close(values.values, expected.values.astype(np.float32))
    assert values.grad_norms is None and values.aux is None


@pytest.mark.parametrize("make_key", [jax.random.key, jax.random.PRNGKey])
def test_example_i_draws_from_the_key_folded_with_i(make_key):
    key = make_key(3)

    def noisy(params, x, key):
        noise = jax.random.normal(key, x.shape, jnp.float32).astype(x.dtype)
        return loss(params, x + noise), jax.random.uniform(key, dtype=jnp.float32)

    whole = truth(noisy, PARAMS, X, key, has_aux=True, prng_argnum=2)
    draws = [jax.random.uniform(jax.random.fold_in(key, i)) for i in range(6)]
    for size in (None, 2):
        fn = clipped_grad(
            noisy, has_aux=True, l2_clip_norm=0.1, prng_argnum=2, microbatch_size=size
        )
        grad, aux = fn(PARAMS, X, key)
        assert_close(grad, whole.grad)
        np.testing.assert_array_equal(aux.aux, draws)


def test_padding_leaves_the_keys_of_other_examples_alone():
    fn = clipped_fun(lambda x, key: jax.random.uniform(key), prng_argnum=1, l2_clip_norm=9.0)
    padding = np.arange(6) != 4
    got = fn(X, KEY, is_padding_example=padding)
    np.testing.assert_allclose(got, jax.random.uniform(jax.random.fold_in(KEY, 4)), rtol=1e-6)


def test_padding_contributes_nothing():
    padding = np.array([False, True, False, True, True, False])
    fn = clipped_grad(loss, l2_clip_norm=0.1, return_values=True, return_grad_norms=True)
    grad, aux = fn(PARAMS, X, is_padding_example=padding)
    whole = truth(loss, PARAMS, X, padding=padding)
    assert_close(grad, whole.grad)
    assert_close(aux.values, np.where(padding, 0, whole.values).astype(np.float32))
    assert_close(aux.grad_norms, np.where(padding, 0, whole.norms).astype(np.float32))


def test_a_loss_that_couples_examples_is_taken_one_example_at_a_time():
    def batch_norm(params, x):
        h = x @ params["w"] + params["b"][None]
        h = h - jnp.mean(h, axis=0, keepdims=True) / 2
        return jnp.mean(jnp.tanh(h) ** 2)

    fn = clipped_grad(batch_norm, l2_clip_norm=0.1, return_values=True)
    with pytest.warns(UserWarning, match="the loss couples examples"):
        grad, aux = fn(PARAMS, X)
    whole = truth(batch_norm, PARAMS, X)
    assert_close(grad, whole.grad)
    assert_close(aux.values, whole.values.astype(np.float32))


def test_a_parameter_that_is_not_used_gets_zeros(expected):
    params = PARAMS | {"unused": np.ones((2, 2), np.float32), "scalar": 1.0}
    grad = clipped_grad(loss, l2_clip_norm=0.1)(params, X)
    assert_close(grad.pop("unused"), np.zeros((2, 2)))
    assert grad.pop("scalar") == 0.0
    assert_close(grad, expected.grad)


def test_a_parameter_in_weight_decay_only_has_one_gradient_for_every_example():
    def decayed(params, x):
        return jnp.mean(x) + jnp.sum(params["w"] ** 2)

    grad = clipped_grad(decayed, l2_clip_norm=1e9)(PARAMS, X)
    assert_close(grad, {"w": 6 * 2 * PARAMS["w"], "b": np.zeros(2)})


def test_jit_scan_and_vmap_of_the_caller_give_the_same(expected):
    fn = clipped_grad(loss, l2_clip_norm=0.1)
    assert_close(jax.jit(fn)(PARAMS, X), expected.grad)

    def step(params, x):
        grad = fn(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grad), grad

    stacked = jnp.stack([X, 2 * X])
    moved, grads = jax.lax.scan(step, jax.tree.map(jnp.asarray, PARAMS), stacked)
    assert_close(jax.tree.map(lambda g: g[0], grads), expected.grad)
    once = jax.tree.map(lambda p, g: p - 0.1 * g.astype(np.float32), PARAMS, expected.grad)
    second = truth(loss, once, 2 * X).grad
    assert_close(jax.tree.map(lambda g: g[1], grads), second)
    assert_close(moved, jax.tree.map(lambda p, g: p - 0.1 * g, once, second))

    pairs = jax.vmap(fn, in_axes=(None, 0))(PARAMS, stacked)
    assert_close(jax.tree.map(lambda g: g[0], pairs), expected.grad)
    assert_close(jax.tree.map(lambda g: g[1], pairs), truth(loss, PARAMS, 2 * X).grad)


def test_a_loss_may_close_over_a_traced_value(expected):
    @jax.jit
    def run(scale):
        return clipped_grad(lambda p, x: scale * loss(p, x), l2_clip_norm=0.1)(PARAMS, X)

    assert_close(run(1.0), expected.grad)
    assert_close(run(2.0), truth(lambda p, x: 2 * loss(p, x), PARAMS, X).grad)


def test_without_the_batch_dimension_a_user_is_clipped_as_a_whole():
    users = RNG.normal(size=(4, 5, 3)).astype(np.float32)  # users, examples, features
    fn = clipped_grad(loss, l2_clip_norm=0.05, keep_batch_dim=False, return_grad_norms=True)
    grad, aux = fn(PARAMS, users)
    whole = truth(loss, PARAMS, users, clip_norm=0.05, keep_batch_dim=False)
    assert_close(grad, whole.grad)
    assert_close(aux.grad_norms, whole.norms.astype(np.float32))


def test_float64_parameters_give_float64_results(expected):
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda p: jnp.asarray(p, jnp.float64), PARAMS)
        fn = clipped_grad(loss, l2_clip_norm=0.1, return_grad_norms=True)
        grad, aux = fn(wide, jnp.asarray(X, jnp.float64))
    assert all(g.dtype == np.float64 for g in jax.tree.leaves((grad, aux.grad_norms)))
    assert_close(grad, expected.grad, rtol=1e-12)
