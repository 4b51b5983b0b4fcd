"""`FrameworkModel`: what the adapters of frameworks make of a user's module."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from bevel.frameworks import FunctionalModel
from bevel.models.model import BuiltModel

PyTree = Any
FrameworkLoss = Callable[..., Any]  # (model, batch) or (model, batch, key) -> loss or (loss, aux)


class FrameworkModel(NamedTuple):
    """A module as parameters and a loss, and how it predicts.

    Attributes:
      functional: the parameters, the state and the loss.
      predict: `(model, x) -> outputs`, in inference mode, with `functional.merge(params)`.
    """

    functional: FunctionalModel
    predict: Callable[[Any, jax.Array], jax.Array]

    def built(self) -> BuiltModel:
        """The model as it is trained. Without a state, its loss does not take one."""
        functional = self.functional
        state = functional.model_state

        def loss_fn(params: PyTree, data: PyTree, prng: jax.Array) -> Any:
            return functional.loss_fn(params, state, data, prng)

        has_state = bool(jax.tree.leaves(state))
        return BuiltModel(
            lambda: functional.params,
            lambda params, x: self.predict(functional.merge(params), x),
            functional.loss_fn if has_state else loss_fn,
            state if has_state else None,
        )
