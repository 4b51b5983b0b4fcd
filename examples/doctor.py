"""See what a step sends between devices, and find mistakes, with `inspect_step` and `doctor`."""

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import bevel
from bevel.sharding import doctor, inspect_step

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
MESH = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def on(shape, *spec):
    """The type of an array on the mesh. Nothing is run here, so no array is needed."""
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(MESH, P(*spec)))


def loss(params, x):
    hidden = jnp.tanh(x @ params["up"])
    return jnp.mean((hidden @ params["down"]) ** 2)


def careless_loss(params, x):
    # The constraint gathers the whole batch onto every device.
    hidden = jax.lax.with_sharding_constraint(jnp.tanh(x @ params["up"]), NamedSharding(MESH, P()))
    return jnp.mean((hidden @ params["down"]) ** 2)


def careless_clipping(weights, x):
    """Autodiff adds the gradients of example i of all shards before their norm is computed."""

    def shard(weights, x):
        grads = jax.vmap(jax.grad(lambda w, x: jnp.sum((x @ w) ** 2)), (None, 0))(weights, x)
        norms = jnp.sqrt(jnp.sum(grads**2, axis=(1, 2)))
        clipped = jnp.einsum("b,bij->ij", jnp.minimum(1.0, 1.0 / norms), grads)
        return jax.lax.psum(clipped, "data")

    return jax.shard_map(shard, mesh=MESH, in_specs=(P(), P("data")), out_specs=P())(weights, x)


def main() -> None:
    params = {"up": on((64, 128), None, "model"), "down": on((128, 64), "model")}
    batch = on((512, 64), "data")

    private = jax.jit(bevel.clipped_grad(loss, l2_clip_norm=1.0))
    print(inspect_step(private.lower(params, batch).compile()))
    assert not doctor(private, params, batch)

    findings = doctor(jax.grad(careless_loss), params, batch)
    print(findings)
    assert findings.of("costly constraint")

    findings = doctor(careless_clipping, on((64, 8)), batch)
    print(findings)
    assert findings.of("early sum")


if __name__ == "__main__":
    main()
