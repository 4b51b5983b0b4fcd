"""A private step, written in JAX's three ways, for the networks of the starting documents.

A row of `NETWORKS` is a network with one loss for each way; `step_of` makes the step. Meshes differ
in which axes there are: `batch` carries examples, `inner` splits the network.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from noise_layouts import threefry_key

import bevel
from bevel.sharding import make_mesh, place, plan_placement

WAYS = ("automatic", "constrained", "manual")
# Compilation is most of the time here.
QUICKLY_COMPILED = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
BATCH, STEPS, STDDEV = 16, 5, 0.5


@dataclasses.dataclass(frozen=True)
class Layout:
    """A mesh, the axes that carry examples, and those that split the network."""

    axes: str
    batch: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()

    @property
    def mesh(self):
        return make_mesh(self.axes)

    def one(self, names):
        """Names as one entry of a spec."""
        return names or None


@dataclasses.dataclass(frozen=True)
class Network:
    """Parameters, a batch, the plain loss, and what each layout makes of them."""

    init: Callable[[], tuple[Any, Any]]
    loss: Callable[[Any, Any], jax.Array]
    constrained: Callable[[Layout], Callable[[Any, Any], jax.Array]]
    manual: Callable[[Layout], Callable[[Any, Any], jax.Array]]
    rules: Callable[[Layout], Any]
    batch_specs: Callable[[Layout], Any]
    layouts: tuple[Layout, ...]


# "Distributed arrays": layers of 784, 8192, 8192, 8192, 10, here of these sizes.

SIZES = (12, 16, 16, 16, 4)


def init_network():
    rng = np.random.default_rng(0)
    params = [
        (
            jnp.asarray(rng.normal(size=s) / np.sqrt(s[0]), jnp.float32),
            jnp.asarray(0.1 * rng.normal(size=s[1]), jnp.float32),
        )
        for s in itertools.pairwise(SIZES)
    ]
    inputs, targets = (rng.normal(size=(BATCH, n)) for n in (SIZES[0], SIZES[-1]))
    return params, (jnp.asarray(inputs, jnp.float32), jnp.asarray(targets, jnp.float32))


def predict(params, inputs, hook=lambda layer, outputs: outputs):
    """`hook` sees the product of each layer before its bias is added."""
    for layer, (w, b) in enumerate(params):
        outputs = hook(layer, jnp.dot(inputs, w)) + b[None]
        inputs = jnp.maximum(outputs, 0)
    return outputs


def squares(predictions, targets):
    return jnp.mean(jnp.sum((predictions - targets) ** 2, axis=-1))


def network_loss(params, batch):
    return squares(predict(params, batch[0]), batch[1])


def constrained_network(layout):
    mesh, rows = layout.mesh, layout.one(layout.batch)

    def hook(layer, outputs):
        spec = P(rows, layout.one(layout.inner)) if layer == 1 else P(rows)
        return jax.lax.with_sharding_constraint(outputs, NamedSharding(mesh, spec))

    return lambda params, batch: squares(predict(params, batch[0], hook), batch[1])


def manual_network(layout):
    def hook(layer, outputs):
        # The second weight is split by columns, the third by rows: its product is a part of a sum.
        return jax.lax.psum(outputs, layout.inner) if layout.inner and layer == 2 else outputs

    return lambda params, batch: squares(predict(params, batch[0], hook), batch[1])


def network_rules(layout):
    inner = layout.one(layout.inner)
    split = [("1/0", P(None, inner)), ("1/1", P(inner)), ("2/0", P(inner, None)), ("*", P())]
    return split if layout.inner else "replicated"


# "Introduction to sharded computation": sigmoid(x @ weights + bias), the contraction split.


def init_layer():
    rng = np.random.default_rng(0)
    params = {
        "weights": jnp.asarray(rng.normal(size=(32, 4)), jnp.float32),
        "bias": jnp.asarray(rng.normal(size=(4,)), jnp.float32),
    }
    x, y = rng.normal(size=(BATCH, 32)), rng.uniform(size=(BATCH, 4))
    return params, (jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32))


def layer_loss(params, batch, total=lambda partial: partial):
    x, y = batch
    return squares(jax.nn.sigmoid(total(x @ params["weights"]) + params["bias"][None]), y)


def constrained_layer(layout):
    mesh, inner, rows = layout.mesh, layout.one(layout.inner), layout.one(layout.batch)

    def loss(params, batch):
        x = jax.lax.with_sharding_constraint(batch[0], NamedSharding(mesh, P(rows, inner)))
        weights = jax.lax.with_sharding_constraint(
            params["weights"], NamedSharding(mesh, P(inner, None))
        )
        return layer_loss(params | {"weights": weights}, (x, batch[1]))

    return loss


def manual_layer(layout):
    def total(partial):
        return jax.lax.psum(partial, layout.inner) if layout.inner else partial

    return lambda params, batch: layer_loss(params, batch, total)


def layer_rules(layout):
    return [("weights", P(layout.one(layout.inner), None)), ("*", P())]


NETWORKS = {
    "network": Network(
        init_network,
        network_loss,
        constrained_network,
        manual_network,
        network_rules,
        lambda layout: P(layout.one(layout.batch)),
        (
            Layout("batch=1", ("batch",)),
            Layout("batch=8", ("batch",)),
            Layout("batch=4,model=2", ("batch",), ("model",)),
            Layout("pod=2,batch=2,model=2", ("pod", "batch"), ("model",)),
        ),
    ),
    "layer": Network(
        init_layer,
        layer_loss,
        constrained_layer,
        manual_layer,
        layer_rules,
        lambda layout: (
            P(layout.one(layout.batch), layout.one(layout.inner)),
            P(layout.one(layout.batch)),
        ),
        (
            Layout("x=1", (), ("x",)),
            Layout("x=8", (), ("x",)),
            Layout("data=4,x=2", ("data",), ("x",)),
            Layout("data=2,x=2,y=2", ("data",), ("x", "y")),
        ),
    ),
}


def step_of(network, layout, way):
    """`step(state, batch)`, and the state and batch that it starts from, on the mesh."""
    mesh = layout.mesh
    params, batch = network.init()
    plan = plan_placement(params, mesh, network.rules(layout))
    loss = network.loss if way == "automatic" else getattr(network, way)(layout)
    manual = {"reduce_axes": layout.batch, "batch_axes": layout.batch} if way == "manual" else {}
    clipped = bevel.clipped_grad(loss, l2_clip_norm=1.0, normalize_by=BATCH, **manual)
    privatizer = bevel.noise_addition.gaussian_privatizer(
        stddev=STDDEV / BATCH, prng_key=threefry_key(7), specs=plan.specs
    )
    optimizer = optax.sgd(0.1, momentum=0.9)

    def step(state, batch):
        params, moments, noise = state
        noised, noise = privatizer.update(clipped(params, batch), noise)
        updates, moments = optimizer.update(noised, moments, params)
        return optax.apply_updates(params, updates), moments, noise

    placed = jax.device_put(params, plan.shardings)
    batch_specs = network.batch_specs(layout)
    rules = (
        [("*", batch_specs)]
        if isinstance(batch_specs, P)
        else list(zip("01", batch_specs, strict=True))
    )
    data = place(batch, mesh, rules)
    state = placed, optimizer.init(placed), privatizer.init(placed)
    if way == "manual":
        moment_specs = optax.tree_utils.tree_map_params(
            optimizer,
            lambda _, spec: spec,
            state[1],
            plan.specs,
            transform_non_params=lambda _: P(),
        )
        specs = plan.specs, moment_specs, P()
        step = jax.shard_map(step, mesh=mesh, in_specs=(specs, batch_specs), out_specs=specs)
    return jax.jit(step, compiler_options=QUICKLY_COMPILED), state, data


def after_steps(network, layout, way):
    """Parameters after some steps, and where they started and ended."""
    step, state, data = step_of(network, layout, way)
    started = jax.tree.map(lambda x: x.sharding, state[0])
    for _ in range(STEPS):
        state = step(state, data)
    return state[0], started


def after_oracle_steps(network):
    """The same in float64, one example at a time, in NumPy."""
    params, batch = network.init()
    privatizer = bevel.noise_addition.gaussian_privatizer(
        stddev=STDDEV / BATCH, prng_key=threefry_key(7)
    )
    zeros, noise = jax.tree.map(jnp.zeros_like, params), privatizer.init(params)
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    momentum = jax.tree.map(np.zeros_like, params)
    for _ in range(STEPS):
        clipped = oracle.clipped_sum(
            network.loss, params, batch, clip_norm=1.0, normalize_by=BATCH
        ).grad
        drawn, noise = privatizer.update(zeros, noise)
        momentum = jax.tree.map(lambda m, g, z: 0.9 * m + g + z, momentum, clipped, drawn)
        params = jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum)
    return params
