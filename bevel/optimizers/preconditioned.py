"""Clipping and noise in the coordinates of an adaptive optimizer's preconditioner."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bevel.errors import FixArgumentsError
from bevel.optimizers.augmented import AugmentedGradientTransformation, PreClippingTransform
from bevel.precision import accumulation_dtype


def scale_then_privatize(
    base_optimizer: optax.GradientTransformation,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    extract_preconditioner_from_state_fn: Callable[[optax.OptState], optax.Updates] | None = None,
) -> AugmentedGradientTransformation:
    """An optimizer whose gradients are divided by `sqrt(nu + eps_root) + eps`, clipped and noised.

    `nu` are the second moments of past noised gradients. Where gradients of some parameters are
    always small, noise of one size for all drowns them; in these coordinates it does not. `update`
    multiplies by the same numbers before `base_optimizer` sees the gradient.

        transform = optimizer.pre_clipping_transform(state)
        grads = clipped_grad(loss, l2_clip_norm=1.0, pre_clipping_transform=transform)(...)
        noised, noise_state = privatizer.update(grads, noise_state)
        updates, state = optimizer.update(noised, state, params)

    Make `clipped_grad` inside the jitted step, as here: it must see the present state.

    The bound of one example's contribution is in the scaled coordinates: privacy does not depend on
    `nu`, as long as it comes from released gradients or public data.

    Args:
      base_optimizer: an adaptive optimizer of optax.
      eps, eps_root: as in `optax.adam`. Before the first update `nu` is 0 and gradients are divided
        by `sqrt(eps_root) + eps`, and so is the clip norm, in effect: choose these of the size of
        gradients that shall not be scaled up further, or start from moments of public data.
      extract_preconditioner_from_state_fn: from the base optimizer's state to `nu`, a tree like the
        parameters. By default the one entry `nu` of the state is taken, as Adam and RMSProp have
        it, without Adam's correction for the first steps.
    """
    for name, value in [("eps", eps), ("eps_root", eps_root)]:
        if not value >= 0:
            raise FixArgumentsError(f"{name}={value!r}: give a number of at least 0.")
    if eps == 0 and eps_root == 0:
        raise FixArgumentsError("eps=0 and eps_root=0: gradients would be divided by 0 at first.")
    second_moments = extract_preconditioner_from_state_fn or _the_nu_of
    base = optax.with_extra_args_support(base_optimizer)

    def pre_clipping_transform(state: optax.OptState) -> PreClippingTransform:
        scale = functools.partial(_scale_of, eps=eps, eps_root=eps_root)
        return functools.partial(_scaled, jax.tree.map(scale, second_moments(state)))

    def update(
        updates: optax.Updates,
        state: optax.OptState,
        params: optax.Params | None = None,
        **extra_args: Any,
    ) -> tuple[optax.Updates, optax.OptState]:
        updates = pre_clipping_transform(state)(updates, inverse=True)
        return base.update(updates, state, params, **extra_args)

    return AugmentedGradientTransformation(base.init, update, pre_clipping_transform)


def _scale_of(nu: jax.Array, *, eps: float, eps_root: float) -> jax.Array:
    wide = nu.astype(accumulation_dtype(nu.dtype))
    return jnp.sqrt(wide + eps_root) + eps


def _scaled(scales: optax.Updates, updates: optax.Updates, inverse: bool = False) -> optax.Updates:
    """`updates / scales`, or `updates * scales`; in float32 or wider."""

    def one(update: jax.Array, scale: jax.Array) -> jax.Array:
        wide = accumulation_dtype(update.dtype, scale.dtype)
        update, scale = update.astype(wide), scale.astype(wide)
        return update * scale if inverse else update / scale

    return jax.tree.map(one, updates, scales)


def _the_nu_of(state: optax.OptState) -> optax.Updates:
    """The second moments in a state of optax. Raises if there is not exactly one tree of them."""
    found = [value for _, value in optax.tree.get_all_with_path(state, "nu")]
    if len(found) != 1:
        raise FixArgumentsError(
            f"the optimizer's state has {len(found)} entries `nu`: pass "
            "extract_preconditioner_from_state_fn=, from the state to the second moments of the "
            "gradients (a tree like the parameters)."
        )
    return found[0]
