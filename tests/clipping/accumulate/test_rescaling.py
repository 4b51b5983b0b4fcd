"""The repair of examples whose squares left the range: once in the program, in place, exact."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle import clipped_sum

import bevel
from bevel.clipping.accumulate import example_gradients, rescaling

B, D, K = 16, 24, 40
rng = np.random.default_rng(0)
W = rng.normal(size=(D, K)).astype(np.float32) / 8
X = rng.normal(size=(B, D)).astype(np.float32)


@pytest.fixture(autouse=True)
def one_pass(monkeypatch):
    monkeypatch.setitem(example_gradients.ONE_PASS, "cpu", 1)


def loss(w, batch):
    """Its gradient is that of two arrays which can be out of range by themselves."""
    h = batch["x"] * batch["in"][:, None]
    return jnp.sum(jnp.sin(h @ w / batch["in"][:, None]) * batch["out"][:, None])


def a_batch(inside=1.0, outside=1.0, rows=()):
    scales = {name: np.ones(B, np.float32) for name in ("in", "out")}
    for name, value in (("in", inside), ("out", outside)):
        scales[name][list(rows)] = value
    return {"x": X, **scales}


def private(norms, **options):
    return bevel.clipped_grad(loss, l2_clip_norm=0.5, norms=norms, **options)


@pytest.mark.parametrize("norms", ["outer", "gram", "product", "keep"])
@pytest.mark.parametrize(
    "inside, outside", [(1e25, 1.0), (1.0, 1e30), (1e-12, 1e12), (1e12, 1e-12)]
)
def test_arrays_out_of_range_give_the_sum_of_the_oracle(norms, inside, outside):
    batch = a_batch(inside, outside, rows=(1, 5))
    wide = jax.tree.map(lambda x: x.astype(np.float64), batch)
    with jax.enable_x64(True):
        truth = clipped_sum(loss, W.astype(np.float64), wide, clip_norm=0.5).grad
    np.testing.assert_allclose(private(norms)(W, batch), truth, rtol=1e-2, atol=2e-4)


@pytest.mark.parametrize("norms", ["outer", "gram", "keep"])
@pytest.mark.parametrize("value", [1e20, 1e38, np.inf, np.nan])
def test_what_padding_contains_changes_no_bit(norms, value):
    padding = np.arange(B) % 4 == 3
    fn = jax.jit(private(norms))
    plain, other = (
        fn(W, a_batch(1.0, v, np.flatnonzero(padding)), is_padding_example=padding)
        for v in (1.0, value)
    )
    assert np.all(np.isfinite(plain))
    np.testing.assert_array_equal(plain, other)


@pytest.mark.parametrize("norms", ["outer", "gram", "keep"])
def test_examples_that_are_not_finite_leave_the_others_as_they_are(norms):
    fn = jax.jit(private(norms, return_grad_norms=True))
    padding = np.arange(B) == 2
    without = fn(W, a_batch(), is_padding_example=padding)
    poisoned = fn(W, a_batch(1.0, np.nan, [2]))
    np.testing.assert_array_equal(without[0], poisoned[0])
    np.testing.assert_array_equal(without[1].grad_norms[~padding], poisoned[1].grad_norms[~padding])


@pytest.mark.parametrize("norms, products", [("outer", 1), ("gram", 1), ("keep", 1)])
def test_each_sum_stands_once(norms, products):
    text = jax.jit(private(norms)).lower(W, a_batch()).as_text()
    found = re.findall(rf"dot_general.*-> tensor<(?:1x)?{D}x{K}xf32>", text)
    assert len(found) == products


def test_each_norm_stands_once():
    """On a CPU, where the loop that may repair norms also computes them the first time."""
    rows = 12

    def over_rows(w, x):
        return jnp.sum(jnp.tanh(x @ w))

    fn = bevel.clipped_grad(over_rows, l2_clip_norm=0.5, norms="gram")
    text = jax.jit(fn).lower(W, np.ones((B, rows, D), np.float32)).as_text()
    matrices = re.findall(rf"dot_general.*-> tensor<{B}x(?:\d+x)*{rows}x1x{rows}xf32>", text)
    assert len(matrices) == 2


@pytest.mark.parametrize("norms", ["outer", "keep"])
def test_a_repair_that_is_not_needed_copies_nothing(norms, monkeypatch):
    big = 2048

    def layers(params, x):
        for w in params:
            x = jnp.tanh(x @ w)
        return jnp.sum(x)

    params, x = [jnp.zeros((64, 64))] * 3, jnp.zeros((big, 64))

    def temporaries():
        fn = bevel.clipped_grad(layers, l2_clip_norm=1.0, norms=norms)
        return jax.jit(fn).lower(params, x).compile().memory_analysis().temp_size_in_bytes

    with_repair = temporaries()
    monkeypatch.setattr(rescaling, "measures_in_a_loop", lambda: False)
    monkeypatch.setattr(rescaling, "once_if", lambda wanted, step, state, *args: state)
    # An argument cannot be changed in place: the batch itself is copied, if it is held.
    copied = x.nbytes if norms == "outer" else 0
    if jax.__version_info__ < (0, 12):  # whose compiler copies one more of the values
        copied += x.nbytes if norms == "outer" else big * params[0].nbytes
    assert with_repair <= temporaries() + copied + 64 * big


def test_a_clipped_sum_with_a_repair_can_be_differentiated():
    def length(scale, fn):
        return jnp.sum(fn(W, a_batch()) * scale) + jnp.sum(fn(W * scale, a_batch()) ** 2)

    expected = jax.grad(length)(1.1, bevel.clipped_grad(loss, l2_clip_norm=0.5, engine="vmap"))
    found = jax.grad(length)(1.1, private("outer"))
    np.testing.assert_allclose(found, expected, rtol=1e-3)


@pytest.mark.parametrize("norms", ["outer", "gram", "keep"])
@pytest.mark.parametrize("value", [1.0, 1e30, np.nan])
def test_a_branch_gives_the_bits_of_the_loop(norms, value, monkeypatch):
    batch = a_batch(1.0, value, rows=(1, 5))
    all_in_a_loop = jax.jit(private(norms))(W, batch)
    monkeypatch.setattr(rescaling, "measures_in_a_loop", lambda: False)
    in_a_loop = jax.jit(private(norms))(W, batch)
    # The compiler may order the sums of a norm differently inside of a loop.
    np.testing.assert_allclose(all_in_a_loop, in_a_loop, rtol=1e-5, atol=1e-6)
    monkeypatch.setattr(rescaling, "takes_a_branch", lambda *sizes: True)
    lowered = jax.jit(private(norms)).lower(W, batch)
    assert "stablehlo.case" in lowered.as_text() or "stablehlo.if" in lowered.as_text()
    np.testing.assert_array_equal(lowered.compile()(W, batch), in_a_loop)
