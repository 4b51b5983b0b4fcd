"""A private training run that any number of processes can share, and what it comes to.

    python -m bevel.sharding.processes -- python tests/private_step.py

Every process draws and loads its own share of each batch; parameters and noise are the same on all.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import bevel
from bevel.batch_selection import CyclicPoissonSampling
from bevel.sharding.processes import join

EXAMPLES, ROWS, STEPS, SEED = 200, 64, 3, 11


def loss(params, batch):
    x, y = batch
    return jnp.mean((jnp.tanh(x @ params["w"]) @ params["v"] - y) ** 2)


def train():
    """Facts of a run of three steps: this process's indices, the noise, and the parameters."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    rows, everywhere = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    rng = np.random.default_rng(0)
    x = rng.normal(size=(EXAMPLES, 5)).astype(np.float32)
    y = rng.normal(size=EXAMPLES).astype(np.float32)
    start = {"w": rng.normal(size=(5, 4)), "v": rng.normal(size=4)}
    params = jax.tree.map(lambda p: jax.device_put(p.astype(np.float32), everywhere), start)

    sampler = CyclicPoissonSampling(sampling_prob=0.15, iterations=STEPS)
    gradient = bevel.clipped_grad(loss, l2_clip_norm=1.0)
    privatizer = bevel.noise_addition.gaussian_privatizer(stddev=gradient.sensitivity(), prng_key=5)
    optimizer = optax.sgd(0.1)

    @jax.jit
    def step(params, state, noise_state, batch, padding):
        grads = gradient(params, batch, is_padding_example=padding)
        noised, noise_state = privatizer.update(grads, noise_state)
        noise = privatizer.update(jax.tree.map(jnp.zeros_like, grads), noise_state)[0]
        updates, state = optimizer.update(noised, state)
        return optax.apply_updates(params, updates), state, noise_state, noise

    state, noise_state = optimizer.init(params), privatizer.init(params)
    facts = {"indices": [], "noise": []}
    for number in range(STEPS):
        share = {"process_index": jax.process_index(), "process_count": jax.process_count()}
        own = sampler.batch(number, EXAMPLES, SEED, **share)
        padded = np.full(ROWS // jax.process_count(), -1)
        padded[: len(own)] = own

        def placed(local):
            return jax.make_array_from_process_local_data(rows, local)

        batch = placed(x[padded]), placed(y[padded])
        params, state, noise_state, noise = step(
            params, state, noise_state, batch, placed(padded == -1)
        )
        facts["indices"].append(sorted(own.tolist()))
        facts["noise"].append(host(noise))
    return facts | {"params": host(params)}


def host(tree):
    return {name: np.asarray(leaf).tolist() for name, leaf in tree.items()}


if __name__ == "__main__":
    print(f"process {join().index} of {jax.process_count()}")
    print(json.dumps(train()))
