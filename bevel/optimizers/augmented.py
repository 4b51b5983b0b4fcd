"""Optimizers that control how gradients are clipped."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import optax

from bevel.errors import FixArgumentsError


class PreClippingTransform(Protocol):
    """A linear map that is applied to per-example gradients before clipping, and its inverse."""

    def __call__(self, updates: optax.Updates, inverse: bool = False) -> optax.Updates: ...


class AugmentedGradientTransformation(NamedTuple):
    """An optimizer, and the coordinates in which its gradients are clipped and noised.

    Pass `pre_clipping_transform(state)` to `clipped_grad(pre_clipping_transform=...)`, add noise to
    the clipped sum, and pass the result to `update`, which transforms it back to the coordinates of
    the parameters. The state must only depend on released values, because it affects the clipping.
    """

    init: Callable[[optax.Params], optax.OptState]
    update: Callable[..., tuple[optax.Updates, optax.OptState]]
    pre_clipping_transform: Callable[[optax.OptState], PreClippingTransform]


def as_augmented_optimizer(
    optimizer: AugmentedGradientTransformation | optax.GradientTransformation,
) -> AugmentedGradientTransformation:
    """Wraps an optax optimizer as an augmented one that does not transform gradients.

    Augmented optimizers are returned unchanged. `update` accepts extra arguments, like optax
    optimizers with `optax.with_extra_args_support`.
    """
    if isinstance(optimizer, AugmentedGradientTransformation):
        return optimizer
    _refuse_accumulation(optimizer)
    if not isinstance(optimizer, optax.GradientTransformation):
        raise FixArgumentsError(
            f"the optimizer has type {type(optimizer).__name__}: pass an "
            "optax.GradientTransformation, such as optax.adam(1e-3), or the result of "
            "scale_then_privatize."
        )
    plain = optax.with_extra_args_support(optimizer)

    def init(params: optax.Params) -> optax.OptState:
        state = plain.init(params)
        for part in jax.tree.leaves(state, is_leaf=_accumulates):
            _refuse_accumulation(part)
        return state

    return AugmentedGradientTransformation(init, plain.update, lambda state: _no_transform)


def _refuse_accumulation(optimizer_or_state: Any) -> None:
    if _accumulates(optimizer_or_state):
        raise FixArgumentsError(
            "the optimizer is an optax.MultiSteps, which would accumulate gradients that each have "
            "the full noise of a step. Use a larger expected_batch_size instead, with "
            "PerformanceFlags(microbatch_size=...) or clipped_grad(microbatch_size=...) to bound "
            "memory: noise is then added once per batch."
        )


def _accumulates(optimizer_or_state: Any) -> bool:
    return isinstance(optimizer_or_state, optax.MultiSteps | optax.MultiStepsState)


def _no_transform(updates: optax.Updates, inverse: bool = False) -> optax.Updates:
    return updates
