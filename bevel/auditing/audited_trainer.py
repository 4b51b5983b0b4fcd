"""`AuditedTrainer`: a trainer whose data contains canaries, and that watches what it releases.

Everything else is that of the trainer: its sampler, clipping, noise, optimizer and loop. Two things
are added. The clipped sum of gradient canaries is computed by the same `plan.clipped_grad`, in a
call of its own, and added to that of the other examples before the noise. A call of its own leaves
the program of the loss as it is, and is cheap: inside the loss, a canary would be a second use of
every parameter, whose gradients would have to be materialised for every example. And two numbers
are kept per canary and step: the noised sum at its coordinate, as the optimizer sees it, and what
the other examples contributed there, which is private and kept with the noise state.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bevel.auditing.canaries import Canaries, GradientCanaries
from bevel.optimizers import AugmentedGradientTransformation
from bevel.training.private_step import PrivateStep
from bevel.training.state import ReleasedState, TrainingState, on_mesh, split
from bevel.training.trainer import Trainer

PyTree = Any
# The gradient of a canary is longer than the clip norm by this factor. After clipping, it
# contributes the clip norm, as much as an example may. If it is not clipped, it contributes more,
# which the audit then sees.
LENGTH = 4.0


class Observed(NamedTuple):
    """The state of the optimizer, and the noised sums at the coordinates of the canaries.

    `sums` has shape (steps, canaries). It is a function of noised sums, so it may be released.
    """

    optimizer: Any
    step: jax.Array
    sums: jax.Array


class _AuditedNoiseState(NamedTuple):
    """The noise state, and what ordinary examples contributed at the coordinates. Both private."""

    noise: Any
    others: jax.Array


@dataclasses.dataclass(frozen=True, eq=False)
class _AuditedStep(PrivateStep):
    """A step in which canaries that are held in contribute, and those held out do not."""

    canaries: Canaries = dataclasses.field(kw_only=True)

    def clip(
        self, state: TrainingState, batch: tuple[PyTree, Any], is_padding: jax.Array, key: jax.Array
    ) -> tuple[PyTree, Any]:
        rows, is_missing = batch
        number = rows["canary"]
        if self.plan.unit.name == "user":
            number = number.max(axis=1)  # all records of a canary have its number
        inside = (rows["record"], is_missing)
        is_canary, table = number > 0, jnp.asarray(self.contributions())
        contribution = jnp.where(is_canary, table[jnp.maximum(number - 1, 0)], 0)
        if not isinstance(self.canaries, GradientCanaries):
            return super().clip(state, inside, is_padding | (is_canary & (contribution == 0)), key)
        sums, aux = super().clip(state, inside, is_padding | is_canary, key)
        self._others.append(self.canaries.values(self._as_released(sums, state)))
        more, own = self._clip_canaries(
            state, number, contribution, is_padding | (contribution == 0)
        )
        sums = jax.tree.map(jnp.add, sums, more)
        norms = jnp.where(is_canary, own.grad_norms.astype(aux.grad_norms.dtype), aux.grad_norms)
        return sums, aux._replace(grad_norms=norms)

    def measured(
        self, state: TrainingState, batch: tuple[PyTree, Any], is_padding: jax.Array, key_data: Any
    ) -> tuple[TrainingState, dict[str, jax.Array]]:
        noise_state = state.noise_state
        if not isinstance(noise_state, _AuditedNoiseState):
            return super().measured(state, batch, is_padding, key_data)
        inner = dataclasses.replace(state, noise_state=noise_state.noise)
        new, metrics = super().measured(inner, batch, is_padding, key_data)
        others = jax.lax.dynamic_update_index_in_dim(
            noise_state.others, self._others.pop(), state.step, 0
        )
        audited = _AuditedNoiseState(new.noise_state, others)
        return dataclasses.replace(new, noise_state=audited), metrics

    @functools.cached_property
    def _others(self) -> list[jax.Array]:
        """What `clip` hands to `measured`, within one trace."""
        return []

    def _as_released(self, sums: PyTree, state: TrainingState) -> PyTree:
        """A clipped sum in the units of a noised one."""
        if self.plan.counting is None:
            return sums
        if self.plan.clip.rescale_to_unit_norm:
            return sums.gradient
        clip_norm = jnp.asarray(self.plan.clip_norm(state.noise_state), jnp.float32)
        return jax.tree.map(lambda x: x * clip_norm.astype(x.dtype), sums.gradient)

    def contributions(self) -> np.ndarray:
        """1 for canaries that are held in. For the others 0, or -1 under replace-one."""
        replaced = self.plan.neighboring_relation.name == "REPLACE_ONE"
        out = -1 if replaced and isinstance(self.canaries, GradientCanaries) else 0
        return np.where(self.canaries.held_in, 1, out).astype(np.int32)

    def _clip_canaries(
        self, state: TrainingState, number: jax.Array, sign: jax.Array, is_padding: jax.Array
    ) -> tuple[PyTree, Any]:
        """The clipped sum of the canaries, by the clipping of the plan."""
        canaries = self.canaries
        assert isinstance(canaries, GradientCanaries)
        leaf, index = jnp.asarray(canaries.leaf, np.int32), jnp.asarray(canaries.index, np.int32)
        used = canaries.by_leaf()

        def loss(trained: PyTree, length: jax.Array, row: tuple[Any, Any]) -> tuple[jax.Array, Any]:
            """`length` times one entry of the parameters, so that this is the only derivative."""
            number, sign = (x.reshape(()) for x in row)
            k = jnp.maximum(number - 1, 0)
            entry = jnp.zeros((), jnp.float32)
            for i, values in enumerate(jax.tree.leaves(trained)):
                if i in used:
                    here = leaf[k] == i
                    place = jnp.where(here, index[k], 0)
                    found = values[tuple(place[d] for d in range(values.ndim))]
                    entry += jnp.where(here, found.astype(jnp.float32), 0)
            return length * sign.astype(jnp.float32) * entry, {}

        options = self.clipping_options(state)
        clip_norm = self.plan.clip_norm(state.noise_state)
        clipped = self.plan.clipped_grad(loss, 0, has_aux=True, clip_norm=clip_norm, **options)
        trained, _ = split(state.params, self.trainable)
        length = LENGTH * jnp.asarray(clip_norm, jnp.float32)
        return clipped(trained, length, (number, sign), is_padding_example=is_padding)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class AuditedTrainer(Trainer):
    """Trains on `DataWithCanaries`. The sums that it observed are in the optimizer state."""

    canaries: Canaries

    def init(self, params: PyTree, *, model_state: PyTree = None) -> TrainingState:
        state = super().init(params, model_state=model_state)
        if not isinstance(self.canaries, GradientCanaries):
            return state
        others = jnp.zeros((self.plan.iterations, len(self.canaries)), jnp.float32)
        audited = _AuditedNoiseState(state.noise_state, on_mesh(others, self.mesh))
        return dataclasses.replace(state, noise_state=audited)

    def released(self, state: TrainingState) -> ReleasedState:
        if isinstance(state.noise_state, _AuditedNoiseState):
            state = dataclasses.replace(state, noise_state=state.noise_state.noise)
        return super().released(state)

    @functools.cached_property
    def step(self) -> PrivateStep:
        plain = super().step
        fields = {field.name: getattr(plain, field.name) for field in dataclasses.fields(plain)}
        return _AuditedStep(**fields, canaries=self.canaries)

    @functools.cached_property
    def _given_optimizer(self) -> Any:
        given = super()._given_optimizer
        if not isinstance(self.canaries, GradientCanaries):
            return given
        return _observing(given, self.canaries, self.plan.iterations)


def _observing(optimizer: Any, canaries: GradientCanaries, steps: int) -> Any:
    """The optimizer, with a state that keeps what it sees at the coordinates of the canaries."""
    plain = optimizer
    if isinstance(optimizer, optax.GradientTransformation):
        plain = optax.with_extra_args_support(optimizer)

    def init(params: PyTree) -> Observed:
        seen = jnp.zeros((steps, len(canaries)), jnp.float32)
        return Observed(plain.init(params), jnp.zeros((), jnp.int32), seen)

    def update(noised: PyTree, state: Observed, params: PyTree = None, **extra: Any) -> Any:
        seen = jax.lax.dynamic_update_index_in_dim(
            state.sums, canaries.values(noised), state.step, 0
        )
        updates, inner = plain.update(noised, state.optimizer, params, **extra)
        return updates, Observed(inner, state.step + 1, seen)

    if isinstance(optimizer, AugmentedGradientTransformation):

        def transform(state: Observed) -> Any:
            return optimizer.pre_clipping_transform(state.optimizer)

        return AugmentedGradientTransformation(init, update, transform)
    return optax.GradientTransformationExtraArgs(init, update)
