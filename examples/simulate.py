"""Debug a `shard_map` program on one device, and run it on a thousand simulated devices.

A tensor-parallel layer forgets to sum over its shards. JAX's own check reports that without a mesh,
and the values on every device show what went wrong. The fixed program then runs on 1024 devices.

python examples/simulate.py
"""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from bevel.sharding.simulate import simulate_shard_map

keys = jax.random.split(jax.random.key(0), 3)
x = jax.random.normal(keys[0], (8, 16))
up = jax.random.normal(keys[1], (16, 32)) / 4
down = jax.random.normal(keys[2], (32, 4)) / 6
expected = jnp.tanh(x @ up) @ down

mesh = {"data": 4, "model": 2}
in_specs = (P("data"), P(None, "model"), P("model"))
specs = {"in_specs": in_specs, "out_specs": P("data")}


def forgot_the_sum(x, up, down):
    return jnp.tanh(x @ up) @ down


def layer(x, up, down):
    return jax.lax.psum(forgot_the_sum(x, up, down), "model")


try:
    simulate_shard_map(forgot_the_sum, mesh=mesh, **specs)(x, up, down)
except ValueError as error:
    print("JAX says:", next(line for line in str(error).splitlines() if "out_specs" in line))

per_device = simulate_shard_map(forgot_the_sum, mesh=mesh, in_specs=in_specs, per_device=True)
views = per_device(x, up, down)
print("what each device holds:", views.shape, "(data, model, rows, columns)")
print(
    "largest difference between model shards:", float(jnp.max(jnp.abs(views[:, 0] - views[:, 1])))
)
print("their sum is right:", bool(jnp.allclose(views.sum(1).reshape(8, 4), expected, atol=1e-5)))

result = jax.jit(simulate_shard_map(layer, mesh=mesh, **specs))(x, up, down)
print("right with the sum:", bool(jnp.allclose(result, expected, atol=1e-5)))

# 1024 devices, and a batch size that they do not divide.
batch = jax.random.normal(keys[0], (1000, 16))
many = jax.jit(simulate_shard_map(layer, mesh={"data": 512, "model": 2}, **specs, pad=True))
print("1024 devices, 1000 rows:", many(batch, up, down).shape)
gradient = jax.grad(lambda up: jnp.sum(many(batch, up, down) ** 2))(up)
expected = jax.grad(lambda up: jnp.sum((jnp.tanh(batch @ up) @ down) ** 2))(up)
print("gradient of one device:", bool(jnp.allclose(gradient, expected, rtol=1e-3, atol=1e-3)))
