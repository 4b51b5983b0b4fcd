"""What a model is trained to predict: the shape of its outputs, its loss, and its test metrics."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bevel.datasets import DataSpec
from bevel.errors import FixDataError


def output_size(data: DataSpec) -> int:
    """The number of outputs of a model, per example or per position."""
    if data.target == "number":
        return 1
    size = data.classes if data.target == "class" else data.vocabulary
    if size is None:
        missing = "classes" if data.target == "class" else "tokens"
        raise FixDataError(
            f"the target of the data is a {data.target}, but the data does not say how many "
            f"{missing} there are."
        )
    return size


def output_shape(data: DataSpec, rows: int) -> tuple[int, ...]:
    """The shape of the outputs for this many examples."""
    if data.target == "number":
        return (rows,)
    positions = data.shape if data.target == "next token" else ()
    return (rows, *positions, output_size(data))


def loss_of(data: DataSpec, outputs: jax.Array, y: jax.Array) -> tuple[jax.Array, dict[str, Any]]:
    """The mean loss of some examples, and what is measured of them.

    Cross entropy for classes, and the squared error for numbers. For the next token, cross entropy
    averaged over the positions of each example, except those with y = -1.
    """
    if data.target == "number":
        return jnp.square(outputs.reshape(y.shape) - y).mean(), {}
    counted = (y >= 0).astype(outputs.dtype)
    y = jnp.maximum(y, jnp.zeros_like(y))
    losses = optax.softmax_cross_entropy_with_integer_labels(outputs, y)
    correct = (outputs.argmax(-1) == y).astype(outputs.dtype)
    if data.target == "class":
        return losses.mean(), {"accuracy": correct.mean()}
    # An example without any position to predict has a loss and a gradient of zero.
    positions = jnp.maximum(counted.sum(-1), jnp.ones((), outputs.dtype))
    means = [((value * counted).sum(-1) / positions).mean() for value in (losses, correct)]
    return means[0], {"accuracy": means[1]}


def totals_of(
    data: DataSpec, outputs: jax.Array, y: jax.Array, is_padding: jax.Array
) -> dict[str, jax.Array]:
    """Sums over some test examples, in float32. They add up over chunks of the test set."""
    outputs = outputs.astype(jnp.float32)
    if data.target == "number":
        values = jnp.square(outputs.reshape(y.shape) - y)
    elif data.target == "class":
        values = (outputs.argmax(-1) == y).astype(jnp.float32)
    else:
        known = jnp.maximum(y, jnp.zeros_like(y))
        values = optax.softmax_cross_entropy_with_integer_labels(outputs, known)
    counted = jnp.broadcast_to(~jnp.expand_dims(is_padding, range(1, y.ndim)), y.shape)
    if data.target == "next token":
        counted &= y >= 0
    return {"sum": jnp.where(counted, values, 0.0).sum(), "count": counted.sum()}


def metrics_of(data: DataSpec, totals: Mapping[str, float]) -> dict[str, float]:
    """The metrics of a test set, from the sums over all of it."""
    mean = totals["sum"] / max(totals["count"], 1)
    if data.target == "class":
        return {"test_accuracy": mean}
    if data.target == "number":
        low, high = data.target_range or (-1.0, 1.0)
        return {"test_rmse": math.sqrt(mean) * (high - low) / 2}  # in the unit of the target
    return {"test_loss": mean, "test_perplexity": float(np.exp(mean))}
