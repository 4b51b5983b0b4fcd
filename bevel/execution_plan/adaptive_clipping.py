"""A clip norm that follows the data, through a noised count alone (Andrew et al. 2021).

Beside the sum of clipped gradients, a step counts the records that needed no clipping. Record i
adds `b_i - 1/2` to the count, b_i being 1 if its gradient was within the clip norm: half a unit at
most, whatever the record holds. Gradients are divided by the clip norm, so they add at most 1, and
the two together, the count times `scale`, are one vector of norm at most hypot(1, scale / 2).

That vector gets Gaussian noise of one standard deviation, noise multiplier times that norm. So the
event is that of the noise multiplier, whatever becomes of the clip norm, and the doubling of
replace-one is that of any other sum. With z_g the noise beside the gradients' bound and sigma the
noise of the count, 1 / z^2 = 1 / z_g^2 + 1 / (2 sigma)^2, the formula of the paper.

The clip norm is moved by the noised count, and by nothing else.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bevel.clipping import Aux, BoundedSensitivityCallable
from bevel.errors import FixArgumentsError
from bevel.noise_addition.privatizer import Privatizer

PyTree = Any
# Clip norms stay within these, so that a long run of noise cannot make them 0 or infinite.
LEAST_NORM, MOST_NORM = 2.0**-60, 2.0**60


@dataclasses.dataclass(frozen=True)
class AdaptiveClipping:
    """Moves the clip norm towards a quantile of the norms of gradients.

    The config's `l2_clip_norm` is where it begins.

    Attributes:
      target_quantile: share of records that should need no clipping.
      learning_rate: the clip norm is multiplied by exp(-learning_rate * (share - target)).
      count_stddev: standard deviation of the noise of the count, in records. None takes a 20th of
        the expected batch size, as the paper does, so that the gradients' noise hardly grows; in
        small batches no less than the noise multiplier, with which it grows by 15%.
    """

    target_quantile: float = 0.5
    learning_rate: float = 0.2
    count_stddev: float | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            object.__setattr__(self, field.name, None if value is None else float(value))
        if not 0 <= self.target_quantile <= 1:
            raise FixArgumentsError(
                f"target_quantile={self.target_quantile}: give a share of the records, from 0 to 1."
            )
        if not 0 < self.learning_rate < math.inf:
            raise FixArgumentsError(
                f"learning_rate={self.learning_rate} of the clip norm: give a positive number, "
                "such as 0.2."
            )
        if self.count_stddev is not None and not 0 < self.count_stddev < math.inf:
            raise FixArgumentsError(
                f"count_stddev={self.count_stddev}: the count must have noise, a positive number "
                "of records. None takes a 20th of the expected batch size."
            )


class CountedGradient(NamedTuple):
    """A sum of clipped gradients, and the scaled and centred count of the unclipped."""

    gradient: PyTree
    unclipped: jax.Array


class AdaptiveNoiseState(NamedTuple):
    """The state of the noise, and the clip norm of the next step. Both may be released."""

    noise: Any
    clip_norm: jax.Array


@dataclasses.dataclass(frozen=True)
class Counting:
    """Adaptive clipping with numbers: how the count is scaled, and read again after the noise."""

    options: AdaptiveClipping
    noise_multiplier: float
    expected_batch_size: float
    normalize_by: float
    rescale_to_unit_norm: bool
    l2_clip_norm: float

    @property
    def count_stddev(self) -> float:
        """Noise of the count, in records (before it is correlated over steps)."""
        given = self.options.count_stddev
        usual = max(self.expected_batch_size / 20, self.noise_multiplier)
        return usual if given is None else given

    @property
    def gradient_noise_multiplier(self) -> float:
        """Noise of the gradients beside their own bound: a little more than the multiplier."""
        rest = 1 / self.noise_multiplier**2 - 1 / (2 * self.count_stddev) ** 2
        if rest <= 0:
            raise FixArgumentsError(
                f"the count of unclipped records has noise of standard deviation "
                f"{self.count_stddev:g}, and with noise multiplier {self.noise_multiplier:g} that "
                f"alone costs the budget: give count_stddev above {self.noise_multiplier / 2:g}, "
                "or larger batches."
            )
        return rest**-0.5

    @property
    def scale(self) -> float:
        """By what the count is multiplied, so that one standard deviation serves both."""
        return self.gradient_noise_multiplier / self.count_stddev

    @property
    def l2_norm_bound(self) -> float:
        """Of one record's contribution, gradient and count together."""
        return math.hypot(1, self.scale / 2) / self.normalize_by

    def counted(
        self,
        clipped: BoundedSensitivityCallable,
        clip_norm: Any,
        keep_norms: bool,
        has_aux: bool,
    ) -> BoundedSensitivityCallable:
        """`clipped`, which gives norms, with the count beside its sum."""
        scale = self.scale / self.normalize_by

        def run(*args: Any, is_padding_example: Any = None, **kwargs: Any) -> Any:
            gradient, aux = clipped(*args, is_padding_example=is_padding_example, **kwargs)
            norms = aux.grad_norms
            # Each record adds exactly +1/2 or -1/2, however its norm was rounded; NaN is above.
            adds = jnp.where(norms <= jnp.asarray(clip_norm, norms.dtype), 0.5, -0.5)
            if is_padding_example is not None:
                adds = jnp.where(is_padding_example, 0.0, adds)
            count = jnp.sum(adds.astype(jnp.float32))
            if clipped.task.reduce_axes:
                count = jax.lax.psum(count, clipped.task.reduce_axes)
            result = CountedGradient(gradient, count * jnp.float32(scale))
            kept = Aux(aux.values, norms if keep_norms else None, aux.aux)
            return (result, kept) if has_aux else result

        return BoundedSensitivityCallable(
            run,
            self.l2_norm_bound,
            has_aux,
            program=clipped.program,
            task=clipped.task,
        )

    def transform(self, noise: Privatizer, dtype: Any) -> Privatizer:
        """Noise for counted gradients, which moves the clip norm by what comes out."""

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
                    "this plan's clip norm adapts to a count: pass the result of its own "
                    "`clipped_grad`, a CountedGradient."
                )
            noised, inner = noise.update(sum_of_clipped_grads, noise_state.noise, **extra_args)
            clip_norm = noise_state.clip_norm

            def released(x: jax.Array) -> jax.Array:
                scaled = x if self.rescale_to_unit_norm else x * clip_norm.astype(x.dtype)
                return scaled if dtype is None else scaled.astype(dtype)

            gradient = jax.tree.map(released, noised.gradient)
            return gradient, AdaptiveNoiseState(inner, self.moved(clip_norm, noised.unclipped))

        return Privatizer(init, update, noise.record)

    def moved(self, clip_norm: jax.Array, noised_count: jax.Array) -> jax.Array:
        """The clip norm of the next step."""
        count = noised_count * jnp.float32(self.normalize_by / self.scale)
        share = jnp.clip(count / jnp.float32(self.expected_batch_size) + 0.5, 0.0, 1.0)
        error = share - jnp.float32(self.options.target_quantile)
        factor = jnp.exp(jnp.float32(-self.options.learning_rate) * error)
        return jnp.clip(clip_norm * factor, LEAST_NORM, MOST_NORM)
