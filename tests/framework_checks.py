"""The clipped sum of a framework's model by a slow loop, and small private runs."""

import jax
import jax.numpy as jnp
import numpy as np

from bevel import DPSGDConfig, PlanSecrets


def slow_clipped_sum(grad_of_example, batch, key, clip_norm):
    """`grad_of_example(example, key)` gives the gradient of one example, as a tree."""
    total = None
    size = len(jax.tree.leaves(batch)[0])
    for i in range(size):
        example = jax.tree.map(lambda x, i=i: x[i : i + 1], batch)
        grad = grad_of_example(example, jax.random.fold_in(key, i))
        norm = jnp.sqrt(sum(jnp.vdot(g, g) for g in jax.tree.leaves(grad)))
        clipped = jax.tree.map(lambda g, norm=norm: g * jnp.minimum(1, clip_norm / norm), grad)
        total = clipped if total is None else jax.tree.map(jnp.add, total, clipped)
    return total


def assert_close(actual, expected, tolerance=1e-3):
    """Relative to the largest entry: contributions are smaller by the slack for rounding."""
    actual, expected = jax.tree.leaves(actual), jax.tree.leaves(expected)
    scale = max(float(jnp.abs(x).max()) for x in expected)
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=0, atol=tolerance * scale)


def plan(iterations=4, **changed):
    """Of runs on 16 examples."""
    fields = {"num_examples": 16, "expected_batch_size": 8, "iterations": iterations}
    fields |= {"noise_multiplier": 1.0, "l2_clip_norm": 1.0}
    return DPSGDConfig.default(**fields | changed).make(secrets=PlanSecrets.for_tests(0))


def step_on_all_data():
    """One step with all examples, and with little noise: the mean of the clipped gradients."""
    return plan(iterations=1, expected_batch_size=16, noise_multiplier=1e-5)
