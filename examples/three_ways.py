"""Write one private step in three ways: automatic, with constraints in the loss, and manual.

The step clips per example, sums, adds noise and updates, on a mesh of 4 x 2 virtual devices. After
five steps, the parameters of all three ways, noise included, equal those of one device.

    python examples/three_ways.py
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec as P

import bevel
from bevel.sharding import describe, make_mesh, place, plan_placement, visualize

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

SIZES, BATCH, CLIP, NOISE = (16, 32, 8), 32, 1.0, 0.5
# The first weight is split by columns, the second by rows, so the pair needs one sum over "model".
RULES = [
    ("0/w", P(None, "model")),
    ("0/b", P("model")),
    ("1/w", P("model", None)),
    ("*", P()),
]


def predict(params, x, after_product=lambda layer, y: y):
    for layer, p in enumerate(params):
        y = after_product(layer, x @ p["w"]) + p["b"]
        x = jax.nn.relu(y)
    return y


def loss_of(after_product):
    def loss(params, batch):
        return jnp.mean((predict(params, batch["x"], after_product) - batch["y"]) ** 2)

    return loss


def constrain(mesh):
    """Constrains activations. Inside a loss, `place` is a sharding constraint."""
    specs = {0: P("data", "model"), 1: P("data")}
    return lambda layer, y: place(y, mesh, specs[layer])


def collect(layer, y):
    """Inside shard_map, the product with some rows of a weight is only part of the sum."""
    return jax.lax.psum(y, "model") if layer == 1 else y


def private_step(loss, privatizer, **manual):
    clipped_grad = bevel.clipped_grad(loss, l2_clip_norm=CLIP, normalize_by=BATCH, **manual)
    optimizer = optax.sgd(0.1)

    def step(params, noise_state, batch):
        noised, noise_state = privatizer.update(clipped_grad(params, batch), noise_state)
        updates, _ = optimizer.update(noised, optimizer.init(params))
        return optax.apply_updates(params, updates), noise_state

    return step


def after_five_steps(step, params, noise_state, batch):
    step = jax.jit(step)
    for _ in range(5):
        params, noise_state = step(params, noise_state, batch)
    return params


def main() -> None:
    rng = np.random.default_rng(0)
    params = [
        {"w": rng.normal(size=(m, n)) / np.sqrt(m), "b": np.zeros(n)}
        for m, n in itertools.pairwise(SIZES)
    ]
    params = jax.tree.map(lambda x: x.astype(np.float32), params)
    batch = {"x": rng.normal(size=(BATCH, SIZES[0])), "y": rng.normal(size=(BATCH, SIZES[-1]))}
    batch = jax.tree.map(lambda x: x.astype(np.float32), batch)

    mesh = make_mesh("data=4,model=2")
    plan = plan_placement(params, mesh, RULES)
    print(plan)
    placed, data = place(params, mesh, RULES), place(batch, mesh, P("data"))
    print(describe({"params": placed, "batch": data}))
    print(visualize(placed[0]["w"]))

    # The key is fixed so that the example always prints the same. Leave it out in real training.
    # Only shard_map needs the specs, because a shard does not know its position in the array.
    privatizer = bevel.noise_addition.gaussian_privatizer(
        stddev=NOISE * CLIP / BATCH, prng_key=1, specs=plan.specs
    )
    state = place(privatizer.init(placed), mesh)
    results = {}
    step = private_step(loss_of(lambda layer, y: y), privatizer)
    results["one device"] = after_five_steps(step, params, privatizer.init(params), batch)
    results["automatic"] = after_five_steps(step, placed, state, data)
    step = private_step(loss_of(constrain(mesh)), privatizer)
    results["constraints"] = after_five_steps(step, placed, state, data)
    step = private_step(loss_of(collect), privatizer, reduce_axes="data", batch_axes="data")
    manual_step = jax.shard_map(
        step,
        mesh=mesh,
        in_specs=(plan.specs, P(), P("data")),
        out_specs=(plan.specs, P()),
    )
    results["manual"] = after_five_steps(manual_step, placed, state, data)

    for name, result in results.items():
        pairs = zip(jax.tree.leaves(result), jax.tree.leaves(results["one device"]), strict=True)
        error = max(float(np.max(np.abs(np.asarray(a) - np.asarray(b)))) for a, b in pairs)
        print(f"{name:12} largest difference from one device: {error:.1e}")
        assert error < 1e-6


if __name__ == "__main__":
    main()
