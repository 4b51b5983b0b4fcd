"""Clip a loss with sharding constraints per example, unchanged, on 8 virtual devices.

python examples/sharded_loss.py
"""

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import bevel

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))


def place(x, *spec):
    return jax.device_put(x, NamedSharding(mesh, P(*spec)))


def constrain(x, *spec):
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))


def loss(params, batch):
    x = constrain(batch["x"], "data", None)
    h = constrain(jnp.tanh(x @ params["w"]), "data", "model")
    return jnp.mean((h @ params["v"] - batch["y"]) ** 2)


keys = jax.random.split(jax.random.key(0), 4)
params = {
    "w": place(jax.random.normal(keys[0], (16, 32)) / 4, None, "model"),
    "v": place(jax.random.normal(keys[1], (32, 8)) / 4, "model", None),
}
batch = {
    "x": place(jax.random.normal(keys[2], (64, 16)), "data"),
    "y": place(jax.random.normal(keys[3], (64, 8)), "data"),
}

grad_fn = bevel.clipped_grad(loss, l2_clip_norm=3.0, normalize_by=64, return_grad_norms=True)
grad, aux = grad_fn(params, batch)

for name, g in grad.items():
    print(f"{name}: {g.shape} {g.dtype}, sharded {g.sharding.spec}")
print(f"clipped {int(jnp.sum(aux.grad_norms > 3.0))} of {aux.grad_norms.size} examples")
print(f"one example changes the result by at most {grad_fn.sensitivity():.6f} in L2 norm")
