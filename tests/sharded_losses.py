"""One table of losses with sharding constraints: a row here joins every test over `CASES`.

`case.make(constrain)` builds the loss; `constrain` is one of the forms below, so that the same loss
is written without constraints (for the oracle), with NamedShardings, with bare specs under
`jax.set_mesh`, and with `jax.sharding.reshard` for Explicit meshes. Specs name the axes "data" and
"model"; a name that the mesh lacks is dropped.

Axes: B examples, T positions, D in, H hidden, K out. Sizes divide meshes of (8,) and (4, 2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

B, T, D, H, K = 8, 4, 8, 16, 8


def on_mesh(spec: Any, mesh: Any) -> P:
    """The spec without the names that the mesh lacks."""
    return P(*(name if name in mesh.axis_names else None for name in spec))


class Unconstrained:
    """What a loss may ask of its form; here, nothing is constrained."""

    def __call__(self, x, *spec):
        return x

    def matmul(self, x, w, *spec):
        """A product whose contracted dimension may be split on both sides."""
        return self(x @ w, *spec)

    def jit(self, fun, in_specs, out_specs):
        return jax.jit(fun)

    def over_model(self, fun, in_specs, out_specs):
        """shard_map of fun(psum, *args); psum is the identity where there is no "model" axis."""
        return lambda *args: fun(lambda x: x, *args)


@dataclass(frozen=True)
class Named(Unconstrained):
    """`with_sharding_constraint(x, NamedSharding(mesh, P(...)))`, for Auto meshes."""

    mesh: Any

    def __call__(self, x, *spec):
        return lax.with_sharding_constraint(x, self.sharding(spec))

    def sharding(self, spec):
        return NamedSharding(self.mesh, on_mesh(spec, self.mesh))

    def inner_mesh(self):
        return self.mesh

    def jit(self, fun, in_specs, out_specs):
        shardings = [self.sharding(spec) for spec in (*in_specs, out_specs)]
        return jax.jit(fun, in_shardings=tuple(shardings[:-1]), out_shardings=shardings[-1])

    def over_model(self, fun, in_specs, out_specs):
        if "model" not in self.mesh.axis_names:
            return super().over_model(fun, in_specs, out_specs)
        return jax.shard_map(
            lambda *args: fun(lambda x: lax.psum(x, "model"), *args),
            mesh=self.inner_mesh(),
            in_specs=in_specs,
            out_specs=out_specs,
            axis_names={"model"},
        )


@dataclass(frozen=True)
class Bare(Named):
    """`with_sharding_constraint(x, P(...))`, for Auto meshes under `jax.set_mesh(mesh)`."""

    def sharding(self, spec):
        return on_mesh(spec, self.mesh)

    def inner_mesh(self):
        return None  # the one in use


@dataclass(frozen=True)
class Reshard(Bare):
    """`jax.sharding.reshard(x, P(...))`, for Explicit meshes under `jax.set_mesh(mesh)`."""

    def __call__(self, x, *spec):
        return jax.sharding.reshard(x, self.sharding(spec))

    def matmul(self, x, w, *spec):
        return jnp.matmul(x, w, out_sharding=self.sharding(spec))


@dataclass(frozen=True)
class ShardedCase:
    name: str
    make: Callable[[Unconstrained], Callable[[Any, Any], jax.Array]]
    params: Any
    batch: Any
    specs: dict[str, tuple[str | None, ...]]  # of the params, by name

    def param_shardings(self, mesh: Any) -> dict[str, NamedSharding]:
        return {name: NamedSharding(mesh, on_mesh(spec, mesh)) for name, spec in self.specs.items()}

    def place(self, mesh: Any) -> tuple[Any, Any]:
        """(params, batch) on the mesh, the batch split over "data"."""
        params = jax.device_put(self.params, self.param_shardings(mesh))
        return params, jax.device_put(self.batch, NamedSharding(mesh, P("data")))


def _draw(*shape, seed=0, scale=1.0):
    rng = np.random.default_rng([seed, *shape])
    return jnp.asarray(scale * rng.normal(size=shape), jnp.float32)


_TWO_LAYERS = {"w": (D, H), "v": (H, K)}
_REPLICATED = {"w": (), "v": ()}
_FSDP = {"w": ("data",), "v": ("data",)}
_TENSOR_PARALLEL = {"w": (None, "model"), "v": ("model",)}

CASES: dict[str, ShardedCase] = {}


def _case(specs, *, shapes=_TWO_LAYERS, positions=(), batch_size=B):
    """Rows (B, D), or sequences (B, T, D) with positions=(T,); examples differ in scale."""
    scale = 2.0 ** np.linspace(-2, 1, batch_size).reshape(batch_size, 1, *(1 for _ in positions))
    batch = {
        "x": _draw(batch_size, *positions, D, scale=scale),
        "y": _draw(batch_size, *positions, K, seed=1),
    }
    params = {
        name: _draw(*shape, seed=2, scale=shape[-2] ** -0.5) for name, shape in shapes.items()
    }

    def register(make):
        CASES[make.__name__] = ShardedCase(make.__name__, make, params, batch, specs)
        return make

    return register


def _squared(prediction, batch):
    return jnp.mean((prediction - batch["y"]) ** 2)


# Constraints on values of an example.


@_case(_REPLICATED)
def on_input(constrain):
    def loss(params, batch):
        x = constrain(batch["x"], "data", None)
        return _squared(jnp.tanh(x @ params["w"]) @ params["v"], batch)

    return loss


@_case(_REPLICATED, positions=(T,))
def on_sequence(constrain):
    def loss(params, batch):
        h = constrain(jnp.tanh(batch["x"] @ params["w"]), "data", None, "model")
        return _squared(constrain(h, "data", None, None) @ params["v"], batch)

    return loss


@_case(_REPLICATED, positions=(T,), batch_size=16)
def on_flattened_positions(constrain):
    def loss(params, batch):
        b, t, d = batch["x"].shape
        h = jnp.tanh(constrain(batch["x"].reshape(b * t, d), "data", None) @ params["w"])
        h = constrain(h, "data", None)
        return _squared((h @ params["v"]).reshape(b, t, K), batch)

    return loss


@_case(_REPLICATED)
def on_outputs(constrain):
    def loss(params, batch):
        logits = constrain(jnp.tanh(batch["x"] @ params["w"]) @ params["v"], "data", None)
        rows = constrain(jnp.mean((logits - batch["y"]) ** 2, axis=-1), "data")
        return constrain(jnp.mean(rows))

    return loss


# Constraints on parameters.


@_case(_FSDP)
def fsdp(constrain):
    def loss(params, batch):
        w, v = constrain(params["w"], "data"), constrain(params["v"], "data")
        return _squared(jnp.tanh(batch["x"] @ w) @ v, batch)

    return loss


@_case(_FSDP)
def fsdp_gathered(constrain):
    def loss(params, batch):
        w, v = (constrain(constrain(params[name], "data"), None, None) for name in ("w", "v"))
        return _squared(jnp.tanh(batch["x"] @ w) @ v, batch)

    return loss


@_case(_TENSOR_PARALLEL)
def tensor_parallel(constrain):
    def loss(params, batch):
        w, v = constrain(params["w"], None, "model"), constrain(params["v"], "model", None)
        h = constrain(jnp.tanh(batch["x"] @ w), "data", "model")
        return _squared(constrain.matmul(h, v, "data", None), batch)

    return loss


@_case({"w": (None, "model"), "v": ()})
def tensor_parallel_columns(constrain):
    def loss(params, batch):
        h = jnp.tanh(batch["x"] @ constrain(params["w"], None, "model"))
        return _squared(constrain(h, "data", None) @ params["v"], batch)

    return loss


# Constraints inside other transformations.


@_case(_REPLICATED, positions=(T,))
def inside_scan(constrain):
    def loss(params, batch):
        def step(total, xy):
            x, y = xy
            h = constrain(jnp.tanh(constrain(x, "data", None) @ params["w"]), "data", "model")
            error = jnp.mean((constrain(h, "data", None) @ params["v"] - y) ** 2)
            return total + error, None

        xs = tuple(jnp.swapaxes(batch[name], 0, 1) for name in ("x", "y"))
        total, _ = lax.scan(step, jnp.zeros((), batch["x"].dtype), xs)
        return total / T

    return loss


@_case(_REPLICATED, shapes={"w": (3, D, D), "v": (D, K)})
def inside_scanned_remat(constrain):
    def loss(params, batch):
        @jax.checkpoint
        def layer(h, w):
            return constrain(h + jnp.tanh(h @ w), "data", None), None

        h, _ = lax.scan(layer, batch["x"], params["w"])
        return _squared(h @ params["v"], batch)

    return loss


@_case(_REPLICATED)
def inside_remat(constrain):
    def loss(params, batch):
        @jax.checkpoint
        def block(params, x):
            h = constrain(jnp.tanh(x @ params["w"]), "data", None)
            return constrain(h @ params["v"], "data", None)

        return _squared(block(params, batch["x"]), batch)

    return loss


@_case(_REPLICATED)
def inside_nested_jit(constrain):
    def loss(params, batch):
        layer = jax.jit(lambda w, x: constrain(jnp.tanh(x @ w), "data", None))
        return _squared(layer(params["w"], batch["x"]) @ params["v"], batch)

    return loss


@_case(_REPLICATED)
def nested_jit_shardings(constrain):
    def loss(params, batch):
        layer = constrain.jit(
            lambda w, x: jnp.tanh(x @ w), in_specs=((), ("data",)), out_specs=("data", None)
        )
        return _squared(layer(params["w"], batch["x"]) @ params["v"], batch)

    return loss


@_case(_REPLICATED)
def inside_custom_vjp(constrain):
    @jax.custom_vjp
    def dense(w, x):
        return constrain(x @ w, "data", None)

    def forward(w, x):
        return dense(w, x), (w, constrain(x, "data", None))

    def backward(saved, g):  # half the gradient: the rule must be taken, not derived
        w, x = saved
        g = constrain(g, "data", None)
        return constrain.matmul(x.T, g, None, None) / 2, constrain(g @ w.T, "data", None)

    dense.defvjp(forward, backward)

    def loss(params, batch):
        return _squared(jnp.tanh(dense(params["w"], batch["x"])) @ params["v"], batch)

    return loss


@_case(_TENSOR_PARALLEL)
def shard_map_over_model(constrain):
    def loss(params, batch):
        def two_layers(psum, w, v, x):
            return psum(jnp.tanh(x @ w) @ v)

        specs = (P(None, "model"), P("model", None), P())
        run = constrain.over_model(two_layers, in_specs=specs, out_specs=P())
        return _squared(run(params["w"], params["v"], batch["x"]), batch)

    return loss
