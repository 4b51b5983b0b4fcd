"""Clipping and noise in the preconditioned coordinates of an adaptive optimizer."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bevel.checks import finite_number, function, instance
from bevel.errors import FixArgumentsError
from bevel.optimizers.augmented import AugmentedGradientTransformation, PreClippingTransform
from bevel.precision import accumulation_dtype


def scale_then_privatize(
    base_optimizer: optax.GradientTransformation,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    extract_preconditioner_from_state_fn: Callable[[optax.OptState], optax.Updates] | None = None,
) -> AugmentedGradientTransformation:
    """An optimizer whose gradients are divided by `sqrt(nu + eps_root) + eps` before clipping.

    `nu` are the second moments of past noised gradients. If some parameters always have small
    gradients, noise of equal size for all parameters hides them; in the scaled coordinates it does
    not. `update` multiplies by the same scale before it calls `base_optimizer`.

        transform = optimizer.pre_clipping_transform(state)
        grads = clipped_grad(loss, l2_clip_norm=1.0, pre_clipping_transform=transform)(...)
        noised, noise_state = privatizer.update(grads, noise_state)
        updates, state = optimizer.update(noised, state, params)

    Call `clipped_grad` inside the jitted step, as here, so that it uses the current state.

    One example's contribution is bounded in the scaled coordinates, so privacy does not depend on
    `nu`, as long as it comes from released gradients or public data.

    Args:
      base_optimizer: an adaptive optax optimizer.
      eps, eps_root: as in `optax.adam`. Before the first update `nu` is 0 and gradients are divided
        by `sqrt(eps_root) + eps`, which multiplies the effective clip norm by it. Choose it of
        the order of the smallest gradients that matter, or start from moments of public data.
      extract_preconditioner_from_state_fn: maps the base optimizer's state to `nu`, a tree like the
        parameters. The default takes the only entry `nu` of the state, as in Adam and RMSProp,
        without Adam's bias correction.
    """
    instance("base_optimizer", base_optimizer, optax.GradientTransformation, "optax.adam(...)")
    eps = finite_number("eps", eps, "as in optax.adam", 0)
    eps_root = finite_number("eps_root", eps_root, "as in optax.adam", 0)
    if extract_preconditioner_from_state_fn is not None:
        function("extract_preconditioner_from_state_fn", extract_preconditioner_from_state_fn)
    if eps == 0 and eps_root == 0:
        raise FixArgumentsError(
            "eps=0 and eps_root=0 would divide the first gradients by 0: pass a positive eps."
        )
    second_moments = extract_preconditioner_from_state_fn or _second_moments_in
    base = optax.with_extra_args_support(base_optimizer)

    def pre_clipping_transform(state: optax.OptState) -> PreClippingTransform:
        def scale(nu: jax.Array) -> jax.Array:
            return jnp.sqrt(nu.astype(accumulation_dtype(nu.dtype)) + eps_root) + eps

        return functools.partial(_apply_scale, jax.tree.map(scale, second_moments(state)))

    def update(
        updates: optax.Updates,
        state: optax.OptState,
        params: optax.Params | None = None,
        **extra_args: Any,
    ) -> tuple[optax.Updates, optax.OptState]:
        updates = pre_clipping_transform(state)(updates, inverse=True)
        return base.update(updates, state, params, **extra_args)

    return AugmentedGradientTransformation(base.init, update, pre_clipping_transform)


def _apply_scale(
    scales: optax.Updates, updates: optax.Updates, inverse: bool = False
) -> optax.Updates:
    """`updates / scales`, or `updates * scales` if inverse, in float32 or wider."""

    def one(update: jax.Array, scale: jax.Array) -> jax.Array:
        wide = accumulation_dtype(update.dtype, scale.dtype)
        update, scale = update.astype(wide), scale.astype(wide)
        return update * scale if inverse else update / scale

    return jax.tree.map(one, updates, scales)


def _second_moments_in(state: optax.OptState) -> optax.Updates:
    """The second moments in an optax state. Raises unless there is exactly one entry `nu`."""
    entries = [value for _, value in optax.tree.get_all_with_path(state, "nu")]
    if len(entries) != 1:
        raise FixArgumentsError(
            f"the optimizer's state has {len(entries)} entries `nu`: pass "
            "extract_preconditioner_from_state_fn, a function from the state to the second moments "
            "of the gradients (a tree like the parameters)."
        )
    return entries[0]
