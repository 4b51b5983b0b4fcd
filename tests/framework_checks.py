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


def small_plan(size, iterations=3, noise=0.5, **options):
    config = DPSGDConfig(
        clip_norm=0.5,
        noise_multiplier=noise,
        iterations=iterations,
        num_examples=size,
        sampling_prob=0.5,
        **options,
    )
    return config.make(secrets=PlanSecrets.for_tests(0))
