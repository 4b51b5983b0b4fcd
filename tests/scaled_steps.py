"""Steps for `bevel.sharding.scale`, which calls them in other processes."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bevel.inspection.scale import PlacedStep

D, K, LAYERS = 16, 32, 3


def loss(params, x):
    def layer(x, w):
        return jnp.tanh(x @ w["up"]) @ w["down"], None

    return jnp.mean(jax.lax.scan(layer, x, params)[0] ** 2)


def step(params, momentum, noise, x):
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, jax.grad(loss)(params, x))
    params = jax.tree.map(lambda p, m, n: p - m - n, params, momentum, noise)
    return params, momentum, noise


def build(mesh, batch_size, *, up=(None, None, None), down=(None, None, None)):
    """Momentum and noise buffers like the parameters, which are split as `up` and `down` say."""

    def on(shape, *spec):
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*spec)))

    params = {"up": on((LAYERS, D, K), *up), "down": on((LAYERS, K, D), *down)}
    places = jax.tree.map(lambda x: x.sharding, params)

    def placed(*args):
        new = step(*args)
        return jax.tree.map(jax.lax.with_sharding_constraint, new, (places, places, places))

    batch = on((batch_size, D), "data")
    arguments = {"params": params, "optimizer": params, "noise": params, "batch": batch}
    return PlacedStep(placed, arguments)


def build_badly_moved(mesh, batch_size):
    """An array that the partitioner can only move by gathering it whole."""

    def move(params, x):
        y = jnp.sin(jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("data", "model"))))
        target = NamedSharding(mesh, P(None, ("data", "model", "more")))
        return params, jax.lax.with_sharding_constraint(y, target)

    x = jax.ShapeDtypeStruct(
        (batch_size, 16), jnp.float32, sharding=NamedSharding(mesh, P("data", "model"))
    )
    params = jax.ShapeDtypeStruct((), jnp.float32, sharding=NamedSharding(mesh, P()))
    return PlacedStep(move, {"params": params, "batch": x})


def broken(mesh, batch_size):
    raise RuntimeError("this step is broken")
