"""Adaptive clipping: the clip norm follows a quantile of gradient norms (Andrew et al. 2021).

Each step also counts the records that need no clipping. Record i adds `b_i - 1/2` to the count,
where b_i is 1 if its gradient is within the clip norm and 0 otherwise, so it changes the count by
at most 1/2. Gradients are divided by the clip norm, so each contributes a norm of at most 1. A
record's gradient and its count times `scale` form one vector of norm at most hypot(1, scale / 2).

The sum of these vectors gets Gaussian noise of one standard deviation, the noise multiplier z times
that norm. The event is therefore that of z for every clip norm, and replace-one doubles the
sensitivity as for any other sum. With z_g the noise multiplier of the gradients alone and sigma the
standard deviation of the count, 1 / z^2 = 1 / z_g^2 + 1 / (2 sigma)^2, as in the paper.

The update of the clip norm uses the noised count and no other data.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bevel.checks import finite_number, positive_number
from bevel.clipping import Aux, BoundedSensitivityCallable
from bevel.errors import FixArgumentsError
from bevel.noise_addition.privatizer import Privatizer

PyTree = Any
# Bounds of the clip norm, so that noise cannot drive it to 0 or infinity in a long run.
MIN_NORM, MAX_NORM = 2.0**-60, 2.0**60


@dataclasses.dataclass(frozen=True)
class AdaptiveClipping:
    """Moves the clip norm towards a quantile of the gradient norms, privately.

    The config's `l2_clip_norm` is the initial clip norm.

    Attributes:
      target_quantile: the fraction of records that should need no clipping.
      learning_rate: each step multiplies the clip norm by
        exp(-learning_rate * (fraction - target_quantile)).
      count_stddev: the standard deviation of the noise of the count, in records. By default
        max(expected_batch_size / 20, noise_multiplier). The first is the choice of the paper and
        hardly increases the noise of the gradients; the second increases it by 15%.
    """

    target_quantile: float = 0.5
    learning_rate: float = 0.2
    count_stddev: float | None = None

    def __post_init__(self) -> None:
        hints = {
            "target_quantile": "a fraction of the records, from 0 to 1",
            "learning_rate": "such as 0.2",
            "count_stddev": "because the count must have noise",
        }
        for name, hint in hints.items():
            value = getattr(self, name)
            if value is None and name == "count_stddev":
                continue
            number = finite_number(name, value, hint)
            if name == "target_quantile":
                finite_number(name, number, hint, 0, 1)
            else:
                positive_number(name, number, hint)
            object.__setattr__(self, name, number)


class CountedGradient(NamedTuple):
    """A sum of clipped gradients, and the scaled and centred count of unclipped records."""

    gradient: PyTree
    unclipped: jax.Array


class AdaptiveNoiseState(NamedTuple):
    """The noise state, which is private, and the next clip norm, which may be released."""

    noise: Any
    clip_norm: jax.Array


@dataclasses.dataclass(frozen=True)
class UnclippedCount:
    """Adaptive clipping in one plan: scales the count, and updates the clip norm from it."""

    options: AdaptiveClipping
    noise_multiplier: float
    expected_batch_size: float
    normalize_by: float
    rescale_to_unit_norm: bool
    l2_clip_norm: float

    @property
    def count_stddev(self) -> float:
        """The noise of the count, in records, before it is correlated over steps."""
        if self.options.count_stddev is not None:
            return self.options.count_stddev
        return max(self.expected_batch_size / 20, self.noise_multiplier)

    @property
    def gradient_noise_multiplier(self) -> float:
        """The noise multiplier of the gradients alone: a little more than that of the plan."""
        remainder = 1 / self.noise_multiplier**2 - 1 / (2 * self.count_stddev) ** 2
        if remainder <= 0:
            raise FixArgumentsError(
                f"count_stddev={self.count_stddev:g} with noise multiplier "
                f"{self.noise_multiplier:g}: the count of unclipped records alone would use up the "
                f"budget. Pass count_stddev above {self.noise_multiplier / 2:g}, or larger batches."
            )
        return remainder**-0.5

    @property
    def scale(self) -> float:
        """The factor of the count, so that count and gradients need the same noise."""
        return self.gradient_noise_multiplier / self.count_stddev

    @property
    def l2_norm_bound(self) -> float:
        """The bound of one record's contribution, gradient and count together."""
        return math.hypot(1, self.scale / 2) / self.normalize_by

    def add_count(
        self, clipped: BoundedSensitivityCallable, clip_norm: Any, keep_norms: bool, has_aux: bool
    ) -> BoundedSensitivityCallable:
        """Wraps `clipped`, which must return norms, to return a `CountedGradient`."""
        scale = self.scale / self.normalize_by

        def run(*args: Any, is_padding_example: Any = None, **kwargs: Any) -> Any:
            gradient, aux = clipped(*args, is_padding_example=is_padding_example, **kwargs)
            norms = aux.grad_norms
            # Each record adds exactly 1/2 or -1/2, however its norm is rounded. NaN adds -1/2.
            votes = jnp.where(norms <= jnp.asarray(clip_norm, norms.dtype), 0.5, -0.5)
            if is_padding_example is not None:
                votes = jnp.where(is_padding_example, 0.0, votes)
            count = jnp.sum(votes.astype(jnp.float32))
            if clipped.task.reduce_axes:
                count = jax.lax.psum(count, clipped.task.reduce_axes)
            result = CountedGradient(gradient, count * jnp.float32(scale))
            returned = Aux(aux.values, norms if keep_norms else None, aux.aux)
            return (result, returned) if has_aux else result

        return BoundedSensitivityCallable(
            run, self.l2_norm_bound, has_aux, program=clipped.program, task=clipped.task
        )

    def transform(self, noise: Privatizer, dtype: Any) -> Privatizer:
        """Wraps `noise` to take a `CountedGradient` and to update the clip norm."""

        def init(params: PyTree) -> AdaptiveNoiseState:
            counted = CountedGradient(params, jnp.zeros((), jnp.float32))
            return AdaptiveNoiseState(noise.init(counted), jnp.float32(self.l2_clip_norm))

        def update(
            sum_of_clipped_grads: CountedGradient,
            noise_state: AdaptiveNoiseState,
            params: PyTree = None,
            **extra_args: Any,
        ) -> tuple[PyTree, AdaptiveNoiseState]:
            del params
            if not isinstance(sum_of_clipped_grads, CountedGradient):
                raise FixArgumentsError(
                    "this plan adapts its clip norm: pass the CountedGradient that its own "
                    "`clipped_grad` returns."
                )
            noised, inner = noise.update(sum_of_clipped_grads, noise_state.noise, **extra_args)
            clip_norm = noise_state.clip_norm

            def released(x: jax.Array) -> jax.Array:
                scaled = x if self.rescale_to_unit_norm else x * clip_norm.astype(x.dtype)
                return scaled if dtype is None else scaled.astype(dtype)

            gradient = jax.tree.map(released, noised.gradient)
            next_norm = self.next_clip_norm(clip_norm, noised.unclipped)
            return gradient, AdaptiveNoiseState(inner, next_norm)

        return Privatizer(init, update, noise.record)

    def next_clip_norm(self, clip_norm: jax.Array, noised_count: jax.Array) -> jax.Array:
        count = noised_count * jnp.float32(self.normalize_by / self.scale)
        fraction = jnp.clip(count / jnp.float32(self.expected_batch_size) + 0.5, 0.0, 1.0)
        error = fraction - jnp.float32(self.options.target_quantile)
        factor = jnp.exp(jnp.float32(-self.options.learning_rate) * error)
        return jnp.clip(clip_norm * factor, MIN_NORM, MAX_NORM)
