"""Choose a mechanism, and see that its noise is as small on running sums as it was said to be.

python examples/matrix_factorization.py
"""

import jax
import jax.numpy as jnp

from bevel import matrix_factorization

steps, epochs, clip_norm = 256, 4, 1.0
params = 10_000
choice = matrix_factorization.choose_mechanism(
    steps,
    epochs,
    memory_per_device=4 * params,  # room for one float32 copy of the gradient
    params_per_device=params,
)
print(choice)

# What the mechanism adds to gradient i is row i of C^-1 z: one stream, one step at a time.
chosen = choice.chosen
noising_matrix = chosen.noising_matrix()
z = chosen.stddev * clip_norm * jax.random.normal(jax.random.key(0), (steps, params))
noise = noising_matrix @ z

# A model is the sum of its updates, so what counts is the error of the sums.
error = jnp.sqrt(jnp.mean(jnp.cumsum(noise, axis=0) ** 2))
print(f"\nerror of the sums: {error:.3f} measured, {chosen.error:.3f} said")
