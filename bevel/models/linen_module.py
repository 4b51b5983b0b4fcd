"""Flax Linen modules as models of a config."""

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

from bevel.datasets import DataSpec
from bevel.frameworks import linen
from bevel.models.framework_model import FrameworkLoss, FrameworkModel
from bevel.models.objective import loss_of

# Arguments by which modules tell training from inference, with their values in training.
_MODES = {"train": True, "training": True, "deterministic": False}


def from_linen(
    module: Any, data: DataSpec, loss: FrameworkLoss | None, key: jax.Array
) -> FrameworkModel:
    """`module.apply(variables, x)` with a batch, with `train=True` or the like if it takes one."""
    parameters = inspect.signature(type(module).__call__).parameters
    training = {name: value for name, value in _MODES.items() if name in parameters}
    inference = {name: not value for name, value in training.items()}
    example = jnp.zeros((1, *data.shape), data.dtype)
    streams = dict(zip(("params", "dropout"), jax.random.split(key), strict=True))
    variables = dict(module.init(streams, example, **inference))
    state = TrainState.create(
        apply_fn=module.apply, params=variables.pop("params", {}), tx=optax.identity()
    )

    def default_loss(model: Any, batch: Any) -> Any:
        return loss_of(data, model(batch["x"], **training), batch["y"])

    return FrameworkModel(
        linen.functional(state, loss or default_loss, collections=variables),
        lambda model, x: model(x, **inference),
    )
