"""Optimizers that have a say in how gradients are clipped."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import optax

from bevel.errors import FixArgumentsError


class PreClippingTransform(Protocol):
    """A linear map, applied to each example's gradient before it is clipped; and its inverse."""

    def __call__(self, updates: optax.Updates, inverse: bool = False) -> optax.Updates: ...


class AugmentedGradientTransformation(NamedTuple):
    """An optimizer, and the coordinates in which it wants gradients clipped and noised.

    `pre_clipping_transform(state)` goes to `clipped_grad(pre_clipping_transform=...)`, noise is
    added to the sum of the result, and `update` gets that: it goes back to the coordinates of the
    parameters by itself. The state must hold only what was released: it is what sets the clipping.
    """

    init: Callable[[optax.Params], optax.OptState]
    update: Callable[..., tuple[optax.Updates, optax.OptState]]
    pre_clipping_transform: Callable[[optax.OptState], PreClippingTransform]


def as_augmented_optimizer(
    optimizer: AugmentedGradientTransformation | optax.GradientTransformation,
) -> AugmentedGradientTransformation:
    """An optimizer of optax as an augmented one: gradients are clipped as they are.

    An augmented one comes back as it is. `update` takes and ignores extra arguments, as optimizers
    of optax with extra arguments do.
    """
    if isinstance(optimizer, AugmentedGradientTransformation):
        return optimizer
    if not isinstance(optimizer, optax.GradientTransformation):
        raise FixArgumentsError(
            f"the optimizer is a {type(optimizer).__name__}: give an optax.GradientTransformation, "
            "such as optax.adam(1e-3), or what scale_then_privatize returns."
        )
    plain = optax.with_extra_args_support(optimizer)
    return AugmentedGradientTransformation(plain.init, plain.update, lambda state: _as_it_is)


def _as_it_is(updates: optax.Updates, inverse: bool = False) -> optax.Updates:
    del inverse
    return updates
