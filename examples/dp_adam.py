"""Adam on noised gradients, with and without correcting the second moments for the noise.

The gradients of the first half of the parameters are ten times as large as those of the second.
Without noise, Adam moves both halves equally. With noise, the noise dominates its denominator, and
the second half lags behind. `dp_adam` corrects for that.

python examples/dp_adam.py
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bevel.optimizers import dp_adam

D, STEPS, RATE, STDDEV = 1_000, 1_000, 1e-3, 0.5
gradient = jnp.where(jnp.arange(D) < D // 2, 1.0, 0.1)
noise = STDDEV * jax.random.normal(jax.random.key(0), (STEPS, D))


def distance_moved(optimizer, gradients):
    """The mean distance that each half of the parameters moved in all steps."""

    def step(state, gradient):
        update, state = optimizer.update(gradient, state)
        return state, update

    _, updates = jax.lax.scan(step, optimizer.init(gradient), gradients)
    total = -np.asarray(updates).sum(axis=0)
    return total[: D // 2].mean(), total[D // 2 :].mean()


rows = {
    "adam, no noise": distance_moved(optax.adam(RATE), jnp.broadcast_to(gradient, noise.shape)),
    "adam, noise": distance_moved(optax.adam(RATE), gradient + noise),
    "dp_adam, noise": distance_moved(dp_adam(RATE, noise_stddev=STDDEV), gradient + noise),
}
for name, (large, small) in rows.items():
    print(f"{name:16} large gradients {large:.2f}   small gradients {small:.2f}")
