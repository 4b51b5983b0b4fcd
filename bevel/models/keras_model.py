"""Keras models as models of a config."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

from bevel.datasets import DataSpec
from bevel.frameworks.adapter import Adapter, ModelLoss, Parts
from bevel.frameworks.loss_checks import call_loss, split_result
from bevel.keras_api.backend import check_backend
from bevel.keras_api.model_checks import check_layers
from bevel.keras_api.model_loss import is_seed, model_state_of, seed_of_example
from bevel.models.framework_model import FrameworkLoss, FrameworkModel
from bevel.models.objective import loss_of

PyTree = Any


def from_keras(model: Any, data: DataSpec, loss: FrameworkLoss | None) -> FrameworkModel:
    """`model(x)` with a batch, in training mode. Losses of its layers and regularizers are added.

    What the model was compiled with is not used: neither its optimizer nor its loss.
    """
    check_backend()
    check_layers(model)
    if not model.built:
        model.build((None, *data.shape))

    def default_loss(bound: Any, batch: Any) -> Any:
        return loss_of(data, bound(batch["x"]), batch["y"])

    functional = _KerasValues().functional(model, loss or default_loss)
    return FrameworkModel(functional, lambda bound, x: bound(x, training=False))


class _BoundModel:
    """A Keras model with given values of its variables, as a function of the input."""

    def __init__(self, parts: Parts, key: jax.Array | None) -> None:
        self.model: Any = parts.structure
        self.params = [parts.params[v.path] for v in self.model.trainable_variables]
        self.others = [
            seed_of_example(key, number) if is_seed(v) else parts.model_state[v.path]
            for number, v in enumerate(self.model.non_trainable_variables)
        ]
        self.added: list[Any] = []  # losses of layers and regularizers
        self.changed: dict[str, Any] = {}

    def __call__(self, x: Any, training: bool = True) -> Any:
        outputs, others, losses = self.model.stateless_call(
            self.params, self.others, x, training=training, return_losses=True
        )
        self.added += losses
        for variable, old, new in zip(
            self.model.non_trainable_variables, self.others, others, strict=True
        ):
            if new is not old and not is_seed(variable):
                self.changed[variable.path] = new
        return outputs


@dataclasses.dataclass(frozen=True)
class _KerasValues(Adapter):
    """Parameters are the values of the trainable variables, by path."""

    frozen_layers = "set trainable = False for a layer whose averages you want to keep"

    def split(self, model: Any) -> Parts:
        params = {v.path: v.value for v in model.trainable_variables}
        state = model_state_of(model, [v.value for v in model.non_trainable_variables])
        return Parts(params, state, model)

    def run(
        self, loss: ModelLoss, parts: Parts, batch: PyTree, key: jax.Array | None
    ) -> tuple[Any, Mapping[str, Any]]:
        bound = _BoundModel(parts, key)
        value, aux = split_result(call_loss(loss, bound, batch, key=key))
        return (sum(bound.added, value), aux), bound.changed

    def merge(self, model: Any, params: PyTree) -> Any:
        return _BoundModel(self.split(model)._replace(params=params), jax.random.key(0))
