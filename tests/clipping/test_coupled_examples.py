"""`clipped_grad` warns once about a loss that couples examples, and computes what it promises."""

import functools
import gc
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bevel import clipped_grad
from bevel.clipping.coupled_examples import quiet, warn_once
from bevel.clipping.program.coupling import Coupling
from bevel.sharding import make_mesh

X = np.random.default_rng(0).normal(size=(8, 4, 3)).astype(np.float32)
PARAMS = {"w": jnp.ones((3, 2))}


def normed_loss():
    """A new function each time, because bevel warns once for each."""

    def loss(params, x):
        h = jnp.tanh(x @ params["w"])
        h = h - h.mean((0, 1), keepdims=True)
        return jnp.mean(h**2)

    return loss


def plain(params, x):
    return jnp.mean(jnp.tanh(x @ params["w"]) ** 2)


def test_a_warning_names_the_line_and_the_way_out():
    gradient = clipped_grad(normed_loss(), l2_clip_norm=1.0)
    said = r"couples examples: reduce_sum .*test_coupled_examples.py:\d+.*GroupNorm or LayerNorm"
    with pytest.warns(UserWarning, match=said):
        found = gradient(PARAMS, X)
    expected, *_ = oracle.clipped_sum(normed_loss(), PARAMS, X, clip_norm=1.0)
    np.testing.assert_allclose(found["w"], expected["w"], atol=1e-5)


def test_it_warns_once_for_each_loss():
    loss = normed_loss()
    with pytest.warns(UserWarning, match="couples examples") as seen:
        for size in (8, 4):
            clipped_grad(loss, l2_clip_norm=1.0)(PARAMS, X[:size])
            jax.jit(clipped_grad(loss, l2_clip_norm=2.0))(PARAMS, X[:size])
    assert len(seen) == 1
    with pytest.warns(UserWarning, match="couples examples"):
        clipped_grad(normed_loss(), l2_clip_norm=1.0)(PARAMS, X)


def test_other_losses_are_traced_once():
    calls = []

    def counted(params, x):
        calls.append(x.shape)
        return plain(params, x)

    clipped_grad(counted, l2_clip_norm=1.0)(PARAMS, X)
    assert calls == [(1, 4, 3)]


def test_what_looks_coupled_at_batch_size_one_is_confirmed_with_two():
    def one_sequence(params, x):
        h = jnp.tanh(x.reshape(4, 3) @ params["w"])
        return jnp.mean((h - h.mean(0, keepdims=True)) ** 2)

    def picks(params, x):
        h = jnp.tanh((x if x.shape[0] > 1 else x.reshape(4, 3)) @ params["w"])
        return jnp.mean((h - h.mean(-2, keepdims=True)) ** 2)

    for loss in (one_sequence, picks):
        clipped_grad(loss, l2_clip_norm=1.0)(PARAMS, X)


def test_users_and_functions_are_not_searched():
    """Without a batch dimension, the first one holds the examples of one user."""
    clipped_grad(normed_loss(), l2_clip_norm=1.0, keep_batch_dim=False)(PARAMS, X)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_meshes_do_not_hide_it(kind):
    mesh = make_mesh("data=8", axis_types=kind)
    x = jax.device_put(X, NamedSharding(mesh, P("data")))
    params = jax.device_put(PARAMS, NamedSharding(mesh, P()))
    with pytest.warns(UserWarning, match="couples examples"):
        clipped_grad(normed_loss(), l2_clip_norm=1.0)(params, x)


def test_losses_are_held_weakly_and_need_not_be_hashable():
    class Loss:
        __hash__ = None

        def __call__(self, params, x):
            return normed_loss()(params, x)

    with pytest.warns(UserWarning, match="couples examples"):
        clipped_grad(Loss(), l2_clip_norm=1.0)(PARAMS, X)
    coupling = Coupling(None, None, "reduce_sum")
    loss = functools.partial(plain)
    quiet(loss)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_once(loss, coupling)
        warn_once(loss, None)
    del loss
    gc.collect()
    with pytest.warns(UserWarning, match="reduce_sum runs over the batch, and its result"):
        warn_once(functools.partial(plain), coupling)
