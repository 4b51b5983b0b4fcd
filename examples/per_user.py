"""Clip per user instead of per example: all examples of a user form one contribution.

python examples/per_user.py
"""

import jax
import jax.numpy as jnp

import bevel


def loss(w, x, y):
    return jnp.mean((x @ w - y) ** 2)


keys = jax.random.split(jax.random.key(0), 3)
w = jax.random.normal(keys[0], (4,))
x = jax.random.normal(keys[1], (10, 5, 4))  # 10 users with 5 examples each
y = jax.random.normal(keys[2], (10, 5))
is_padding = jnp.arange(10) >= 8  # the last two rows are padding

grad_fn = bevel.clipped_grad(
    loss, l2_clip_norm=1.0, batch_argnums=(1, 2), keep_batch_dim=False, return_grad_norms=True
)
grad, aux = grad_fn(w, x, y, is_padding_example=is_padding)

print("norm of each user's gradient:", aux.grad_norms.round(2))
print("sum of the clipped gradients:", grad.round(3))
