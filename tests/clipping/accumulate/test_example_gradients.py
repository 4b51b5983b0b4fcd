"""Norms and sums of leaves: the oracle of each way is in `norms/`; this is how they are joined."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle import clipped_sum

import bevel
from bevel.clipping.accumulate import example_gradients

rng = np.random.default_rng(1)
PARAMS = {"w": rng.normal(size=(5, 4)).astype(np.float32), "b": np.zeros(4, np.float32)}
BATCH = rng.normal(size=(6, 5)).astype(np.float32)


def loss(params, x):
    return jnp.mean(jnp.sum(jnp.tanh(x @ params["w"] + params["b"][None]) ** 2, axis=1))


@pytest.mark.parametrize("scale", [1.0, 1e25])
@pytest.mark.parametrize("norms", ["keep", "outer"])
def test_one_pass_and_scaled_norms_give_the_same_sum(norms, scale, monkeypatch):
    """At 1e25 squares overflow, so the branch that computes norms with scaling is taken."""

    def large(params, x):
        return scale * loss(params, x)

    truth = clipped_sum(large, PARAMS, BATCH, clip_norm=0.1).grad
    for elements in (1, 2**30):
        monkeypatch.setitem(example_gradients.ONE_PASS, "cpu", elements)
        fn = bevel.clipped_grad(large, l2_clip_norm=0.1, norms=norms)
        found = jax.jit(fn)(PARAMS, BATCH)
        for leaf, expected in zip(jax.tree.leaves(found), jax.tree.leaves(truth), strict=True):
            np.testing.assert_allclose(leaf, expected, rtol=2e-5, atol=1e-7)
