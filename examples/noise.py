"""Add independent and correlated noise to sharded gradients, the same noise on every mesh.

python examples/noise.py
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import bevel
from bevel.matrix_factorization import toeplitz
from bevel.noise_addition import gaussian_privatizer, keys, matrix_factorization_privatizer

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
w = jnp.zeros((16, 8))
batch = jax.random.normal(jax.random.key(0), (32, 16))


def loss(w, x):
    return jnp.mean(jnp.square(x @ w - 1.0))


grad_fn = bevel.clipped_grad(loss, l2_clip_norm=1.0)
grads = grad_fn(w, batch)
sharded = jax.device_put(grads, NamedSharding(mesh, P("data", "model")))

# Independent noise. The key comes from the operating system, and devices do not communicate.
noise_multiplier, steps = 1.1, 4
stddev = noise_multiplier * grad_fn.sensitivity()
privatizer = gaussian_privatizer(stddev=stddev, prng_key=keys.new_key("threefry2x32"))
print("record:", privatizer.record)
update = jax.jit(privatizer.update)
state, released = privatizer.init(sharded), []
for _ in range(steps):
    noised, state = update(sharded, state)
    released.append(noised)

# Draw the noise of step 2 again, as after a crash, but without a mesh.
redrawn, _ = privatizer.update(grads, privatizer.init(grads)._replace(step=jnp.uint32(2)))
print("difference on another mesh:", f"{np.max(np.abs(redrawn - released[2])):.0e}")

# Correlated noise: each step cancels some of the earlier noise.
coefs = toeplitz.optimal_max_error_strategy_coefs(steps)
column_norm = float(np.linalg.norm(coefs))  # one participation
correlated = matrix_factorization_privatizer(
    toeplitz.inverse_as_streaming_matrix(coefs), stddev=stddev * column_norm
)
state, zero = correlated.init(sharded), jnp.zeros_like(sharded)
update, total = jax.jit(correlated.update, donate_argnums=1), jnp.zeros_like(sharded)
for _ in range(steps):
    noised, state = update(zero, state)
    total = total + noised
print("noise buffers are sharded like the gradient:", state.buffers[0]["ring"].sharding.spec)
independent = stddev * np.sqrt(steps)
print(f"error of the sum after {steps} steps: {np.std(total):.2f}; independent: {independent:.2f}")
