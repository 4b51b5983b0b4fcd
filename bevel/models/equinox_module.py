"""Equinox modules as models of a config."""

import inspect
from typing import Any

import equinox as eqx
import jax

from bevel.datasets import DataSpec
from bevel.frameworks import equinox
from bevel.models.framework_model import FrameworkLoss, FrameworkModel
from bevel.models.objective import loss_of


def from_equinox(module: Any, data: DataSpec, loss: FrameworkLoss | None) -> FrameworkModel:
    """`module(x)` with one example, or `module(x, key=key)` if it takes a key."""
    takes_key = "key" in inspect.signature(type(module).__call__).parameters

    def default_loss(model: Any, batch: Any, key: jax.Array) -> Any:
        if takes_key:
            keys = jax.random.split(key, len(batch["x"]))
            outputs = jax.vmap(lambda x, k: model(x, key=k))(batch["x"], keys)
        else:
            outputs = jax.vmap(model)(batch["x"])
        return loss_of(data, outputs, batch["y"])

    def predict(model: Any, x: jax.Array) -> jax.Array:
        return jax.vmap(eqx.nn.inference_mode(model))(x)

    return FrameworkModel(equinox.functional(module, loss or default_loss), predict)
