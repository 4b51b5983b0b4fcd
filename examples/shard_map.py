"""Clip inside `jax.shard_map`: each shard clips its own examples, and the sum is reduced once.

Plain autodiff would add the gradients of replicated parameters over the shards before any norm is
computed, so every per-example norm would be wrong without an error.

    python examples/shard_map.py
"""

import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import bevel

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))


def loss(w, batch):
    x, y = batch
    return jnp.mean((x @ w - y) ** 2)


keys = jax.random.split(jax.random.key(0), 3)
w = jax.random.normal(keys[0], (4,))
batch = jax.random.normal(keys[1], (32, 4)), jax.random.normal(keys[2], (32,))

options = {"l2_clip_norm": 1.0, "return_grad_norms": True}
step = jax.shard_map(
    bevel.clipped_grad(loss, reduce_axes="data", **options),
    mesh=mesh,
    in_specs=(P(), P("data")),
    out_specs=(P(), P("data")),
)
grad, aux = jax.jit(step)(w, batch)
expected, expected_aux = bevel.clipped_grad(loss, **options)(w, batch)

print("largest difference from one device:", float(jnp.max(jnp.abs(grad - expected))))
print(
    "largest difference of the norms:",
    float(jnp.max(jnp.abs(aux.grad_norms - expected_aux.grad_norms))),
)
