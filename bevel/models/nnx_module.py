"""Flax NNX modules as models of a config."""

from typing import Any

import jax

from bevel.datasets import DataSpec
from bevel.frameworks import nnx
from bevel.models.framework_model import FrameworkLoss, FrameworkModel
from bevel.models.objective import loss_of


def from_nnx(module: Any, data: DataSpec, loss: FrameworkLoss | None) -> FrameworkModel:
    """`module(x)` with a batch. Its random streams start from a key of each example."""

    def default_loss(model: Any, batch: Any) -> Any:
        return loss_of(data, model(batch["x"]), batch["y"])

    def predict(model: Any, x: jax.Array) -> jax.Array:
        model.eval()  # a copy
        return model(x)

    return FrameworkModel(nnx.functional(module, loss or default_loss), predict)
