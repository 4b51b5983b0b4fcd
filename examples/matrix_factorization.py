"""Choose a mechanism, and check that the error of its running sums is as predicted.

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

# The mechanism adds row i of C^-1 z to gradient i, computed one step at a time.
chosen = choice.chosen
noising_matrix = chosen.noising_matrix()
z = chosen.stddev * clip_norm * jax.random.normal(jax.random.key(0), (steps, params))
noise = noising_matrix @ z

# A model is the sum of its updates, so the error of the running sums is what matters.
error = jnp.sqrt(jnp.mean(jnp.cumsum(noise, axis=0) ** 2))
print(f"\nerror of the sums: {error:.3f} measured, {chosen.error:.3f} predicted")
