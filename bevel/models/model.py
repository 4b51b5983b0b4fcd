"""`Model`: a model as plain functions, and `BuiltModel`: any model in the form that is trained."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

PyTree = Any


class Model(NamedTuple):
    """A model as plain functions.

    Attributes:
      init: `key -> params`, a tree of arrays.
      predict: `(params, x) -> outputs`, for a batch x of shape (B, *data.shape). The outputs are
        logits of shape (B, classes), numbers of shape (B,), or logits of the next token of shape
        (B, T, vocabulary), according to `data.target`.
      loss: `(params, {"x": ..., "y": ...})`, or with a third parameter `key`, which returns the
        loss or `(loss, aux)`. None means cross entropy, or the squared error for numbers. The loss
        is called with one example at a time, which has a batch dimension of size 1, and a key of
        that example.
    """

    init: Callable[[jax.Array], PyTree]
    predict: Callable[[PyTree, jax.Array], jax.Array]
    loss: Callable[..., Any] | None = None


@dataclasses.dataclass(frozen=True)
class BuiltModel:
    """A model in the form that is trained and measured.

    Attributes:
      init: returns the initial parameters.
      predict: `(params, x) -> outputs`, without dropout.
      loss_fn: `(params, data, prng) -> (loss, aux)`; with a model state
        `(params, model_state, data, prng) -> (loss, aux)`.
      model_state: arrays that the model reads and nobody trains, or None if there are none.
    """

    init: Callable[[], PyTree]
    predict: Callable[[PyTree, jax.Array], jax.Array]
    loss_fn: Callable[..., tuple[jax.Array, Any]]
    model_state: PyTree = None
