"""Small meshes, and the types of arrays on them."""

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P


def auto_mesh(**sizes):
    kinds = (AxisType.Auto,) * len(sizes)
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=kinds)


LINE = auto_mesh(data=8)
GRID = auto_mesh(data=4, model=2)


def on(mesh, shape, *spec, dtype=jnp.float32):
    """The type of an array on a mesh."""
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))


def two_layers(mesh, up, down, dtype=jnp.float32, d=32, k=64):
    """The types of the weights that `network` takes, split as `up` and `down` say."""
    return {
        "up": on(mesh, (d, k), *up, dtype=dtype),
        "down": on(mesh, (k, d), *down, dtype=dtype),
    }


def network(params, x):
    return jnp.tanh(x @ params["up"]) @ params["down"]


def loss(params, x):
    return jnp.mean(network(params, x).astype(jnp.float32) ** 2)


def sgd_step(params, x):
    grads = jax.grad(loss)(params, x)
    return jax.tree.map(lambda p, g: p - g.astype(p.dtype), params, grads)


DATA_PARALLEL = ((), ())
TENSOR_PARALLEL = ((None, "model"), ("model",))
SHARDED_DATA_PARALLEL = (("data",), (None, "data"))
