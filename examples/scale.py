"""Estimate a private step on thousands of devices on a laptop, by compiling it only."""

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import bevel
from bevel.sharding import PlacedStep, scale

noise = bevel.noise_addition.gaussian_privatizer(stddev=1.0, prng_key=0)
adam = optax.adam(1e-3)


def loss(params, x):
    """A stack of residual layers, each sharded over `model` in its hidden dimension."""

    def layer(x, weights):
        return x + jnp.tanh(x @ weights["up"]) @ weights["down"], None

    x, _ = jax.lax.scan(layer, x, params)
    return jnp.mean(x**2)


def build_step(mesh, batch_size, *, layers=2, width=64):
    """A private step with Adam and Gaussian noise, for a mesh of `data` and `model`."""

    def on(spec):
        return lambda a: jax.ShapeDtypeStruct(
            a.shape, a.dtype, sharding=NamedSharding(mesh, spec if a.ndim else P())
        )

    specs = {"up": P(None, None, "model"), "down": P(None, "model")}
    shapes = {"up": (layers, width, 4 * width), "down": (layers, 4 * width, width)}
    params = {
        name: on(specs[name])(jax.ShapeDtypeStruct(shape, jnp.float32))
        for name, shape in shapes.items()
    }
    grad_fn = bevel.clipped_grad(loss, l2_clip_norm=1.0, normalize_by=batch_size)

    def step(params, adam_state, noise_state, x):
        noisy, noise_state = noise.update(grad_fn(params, x), noise_state)
        updates, adam_state = adam.update(noisy, adam_state)
        return optax.apply_updates(params, updates), adam_state, noise_state

    def like_params(tree):
        """The state, with copies of parameters sharded like the parameters."""

        def placed(path, x):
            names = [key.key for key in path if isinstance(key, jax.tree_util.DictKey)]
            return on(specs[names[-1]] if names else P())(x)

        return jax.tree_util.tree_map_with_path(placed, tree)

    x = jax.ShapeDtypeStruct((batch_size, width), jnp.float32)
    arguments = {
        "params": params,
        "optimizer": like_params(jax.eval_shape(adam.init, params)),
        "noise": like_params(jax.eval_shape(noise.init, params)),
        "batch": on(P("data"))(x),
    }
    return PlacedStep(step, arguments)


if __name__ == "__main__":
    print(
        scale(
            build_step,
            axes="data=-1,model=2",
            batch_size=32,
            devices=(4, 8),  # by default 8, 64, 512 and, extrapolated from these, 4096
        )
    )
