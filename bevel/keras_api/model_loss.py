"""The loss of one example, as a function of the arrays of a Keras model."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from bevel.frameworks.adapter import Adapter, ModelLoss, Parts
from bevel.training import LossFnWithState

PyTree = Any
DATA = ("x", "y", "sample_weight")


def model_loss(model: Any) -> LossFnWithState:
    """The loss `(params, model_state, data, prng) -> (loss, {"y_pred": ...})` of a compiled model.

    `params` are the trainable variables, and `model_state` is the result of `model_state_of`.
    `data` is a dict with the entries of `DATA` that `fit` was given.
    """
    return _Keras().functional(model, _compiled_loss).loss_fn


def model_state_of(model: Any, values: list[Any]) -> dict[str, Any]:
    """What is read and not trained, by path, from the values of all non-trainable variables."""
    variables = zip(model.non_trainable_variables, values, strict=True)
    return {variable.path: value for variable, value in variables if not is_seed(variable)}


def is_seed(variable: Any) -> bool:
    """Whether a variable is the state of a `keras.random.SeedGenerator`."""
    return variable.name == "seed_generator_state"


def _compiled_loss(model: Any, batch: PyTree) -> Any:
    raise AssertionError("a Keras model has its own loss")


@dataclasses.dataclass(frozen=True)
class _Keras(Adapter):
    """The structure of a model is the model itself; values are passed as arguments."""

    frozen_layers = "set trainable = False for a layer whose averages you want to keep"

    def split(self, model: Any) -> Parts:
        # During `fit`, Keras takes the values out of the variables.
        params, values = (
            [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in variables]
            for variables in (model.trainable_variables, model.non_trainable_variables)
        )
        return Parts(params, model_state_of(model, values), model)

    def run(
        self, loss: ModelLoss, parts: Parts, batch: PyTree, key: jax.Array | None
    ) -> tuple[Any, Mapping[str, Any]]:
        model: Any = parts.structure
        others = model.non_trainable_variables
        before = [
            seed_of_example(key, number) if is_seed(variable) else parts.model_state[variable.path]
            for number, variable in enumerate(others)
        ]
        # What the loss adds to these is dropped: metrics are computed from the predictions.
        metrics = [jnp.zeros(v.shape, v.dtype) for v in model.metrics_variables]
        _, (value, y_pred, after, _) = model.compute_loss_and_updates(
            parts.params,
            before,
            metrics,
            *(batch.get(name) for name in DATA),
            training=True,
            optimizer_variables=[],
        )
        changed = {
            variable.path: new
            for variable, old, new in zip(others, before, after, strict=True)
            if new is not old and not is_seed(variable)
        }
        return (value, {"y_pred": y_pred}), changed

    def merge(self, model: Any, params: PyTree) -> Any:
        raise AssertionError("Keras writes the values into the model")


def seed_of_example(key: jax.Array | None, number: int) -> jax.Array:
    """The state of a seed generator for one example."""
    assert key is not None
    return jax.random.bits(jax.random.fold_in(key, number), (2,), jnp.uint32)
