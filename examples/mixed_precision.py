"""Clip a bfloat16 model. The sum of clipped gradients is float32 by default.

python examples/mixed_precision.py
"""

import jax
import jax.numpy as jnp

import bevel


def loss(params, batch):
    x, y = batch
    h = jnp.tanh(x.astype(jnp.bfloat16) @ params["w"].astype(jnp.bfloat16))
    out = h @ params["v"]  # a bfloat16 parameter beside a float32 one
    return jnp.mean((out.astype(jnp.float32) - y) ** 2)


keys = jax.random.split(jax.random.key(0), 4)
params = {
    "w": jax.random.normal(keys[0], (16, 32)) / 4,
    "v": (jax.random.normal(keys[1], (32, 8)) / 4).astype(jnp.bfloat16),
}
batch = jax.random.normal(keys[2], (256, 16)), jax.random.normal(keys[3], (256, 8))

grad_fn = bevel.clipped_grad(loss, l2_clip_norm=0.1)
grad = grad_fn(params, batch)

for name, g in grad.items():
    print(f"{name}: parameter {params[name].dtype}, gradient {g.dtype}")
print(f"sensitivity of the exact sum: {grad_fn.sensitivity():.3f}")
print(f"rounding bound of the sum over 256 examples: {grad_fn.rounding_bound(256):.2e}")
