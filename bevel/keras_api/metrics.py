"""The metrics of a step, without the padding of its batch. They are not private."""

from typing import Any

import jax
import jax.numpy as jnp

from bevel.keras_api.backend import keras
from bevel.keras_api.model_loss import DATA

PyTree = Any


def updated_metrics(
    model: Any,
    variables: list[jax.Array],
    weights: list[tuple[Any, jax.Array]],
    data: PyTree,
    y_pred: PyTree,
    losses: jax.Array,
    is_padding: jax.Array,
) -> tuple[dict[str, Any], list[jax.Array]]:
    """Adds the rows of a batch to the metrics of a compiled model, except for padding.

    Rows are added one at a time, because Keras has no weights for metrics that are not weighted.

    Args:
      variables: the values of the model's metric variables.
      weights: all other variables of the model with their values, for losses that read them.
      data: the batch, as `model_loss` takes it.
      y_pred: the predictions, as `model_loss` returns them for each row: (B, 1, ...).
      losses: the loss of each row, (B,).
      is_padding: True for rows to leave out, (B,).

    Returns:
      The results of all metrics, and the new values of the variables.
    """

    def add_row(variables: list[jax.Array], row: Any) -> tuple[list[jax.Array], None]:
        data, y_pred, loss, is_padding = row
        x, y, sample_weight = (data.get(name) for name in DATA)
        with _scope(model, variables, weights) as scope:
            tracker = getattr(model, "_loss_tracker", None)
            if tracker is not None:
                tracker.update_state(loss)
            # The losses of single outputs are tracked in here.
            model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True)
            model.compute_metrics(x, y, y_pred, sample_weight)
        return [
            jnp.where(is_padding, old, _current(scope, variable, old))
            for variable, old in zip(model.metrics_variables, variables, strict=True)
        ], None

    rows = jax.tree.map(lambda x: x[:, None], data)
    variables, _ = jax.lax.scan(add_row, variables, (rows, y_pred, losses, is_padding))
    with _scope(model, variables, weights):
        return model.get_metrics_result(), variables


def _scope(model: Any, variables: list[jax.Array], weights: list[tuple[Any, jax.Array]]) -> Any:
    mapping = zip(model.metrics_variables, variables, strict=True)
    return keras.StatelessScope(state_mapping=[*mapping, *weights])


def _current(scope: Any, variable: Any, old: jax.Array) -> jax.Array:
    value = scope.get_current_value(variable)
    return old if value is None else jnp.asarray(value, old.dtype)
