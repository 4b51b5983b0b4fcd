"""One step of private training: clip, add noise, update."""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.extend.core import ClosedJaxpr, Var

from bevel.clipping import BoundedSensitivityCallable
from bevel.clipping.coupled_examples import EXPLANATION, quiet
from bevel.clipping.program.coupling import Coupling
from bevel.clipping.program.shared_randomness import find_shared_mask
from bevel.errors import FixArgumentsError, FixLossError
from bevel.execution_plan import DPExecutionPlan
from bevel.noise_addition import keys as noise_keys
from bevel.optimizers import AugmentedGradientTransformation
from bevel.training.contribution import (
    Augmentation,
    LossFn,
    LossFnWithState,
    contribution,
    coupling_of_rows,
    shared_mask_line,
)
from bevel.training.digest import digest
from bevel.training.framework_objects import check_depends_on_params
from bevel.training.program_digest import derivative_digest, program_digest
from bevel.training.raw_metrics import measures
from bevel.training.state import Trainable, TrainingState, joined, split, widened

PyTree = Any


@dataclasses.dataclass(frozen=True, eq=False)
class PrivateStep:
    """`step(state, batch, is_padding, loss_key, noise_key) -> (new state, aux, clipped sum)`.

    `batch` is a pair of the rows and a mask of missing examples, which is None unless users are
    protected. Only the new state may be released; aux and the clipped sum are not private.
    """

    plan: DPExecutionPlan
    loss_fn: LossFn | LossFnWithState
    optimizer: AugmentedGradientTransformation
    transforms_gradients: bool  # the optimizer has a pre_clipping_transform of its own
    batch_axes: tuple[str, ...] | None
    trainable: Trainable
    augmentation: Augmentation | None
    ema_decay: float | None
    clip_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # speed and memory
    allow_coupled_examples: bool = False

    def __call__(
        self,
        state: TrainingState,
        batch: tuple[PyTree, Any],
        is_padding: jax.Array,
        loss_key: jax.Array,
        noise_key: jax.Array,
    ) -> tuple[TrainingState, Any, PyTree]:
        sums, aux = self.clip(state, batch, is_padding, loss_key)
        noised, noise_state = self.add_noise(sums, state, noise_key)
        params, opt_state = self.update(noised, state)
        new = TrainingState(
            step=state.step + 1,
            params=params,
            opt_state=opt_state,
            noise_state=noise_state,
            average=self.average(state, params),
            model_state=state.model_state,
        )
        return new, aux, sums

    def clip(
        self, state: TrainingState, batch: tuple[PyTree, Any], is_padding: jax.Array, key: jax.Array
    ) -> tuple[PyTree, Any]:
        """The clipped sum, and the per-example values, norms and aux."""
        options = {"prng_argnum": 3, **self.clipping_options(state)}
        loss = contribution(self.loss_fn, self.plan.unit.name == "user", self.augmentation)
        quiet(loss)  # `check_coupling` reports it
        clip_norm = self.plan.clip_norm(state.noise_state)
        clipped = self.plan.clipped_grad(loss, 0, has_aux=True, clip_norm=clip_norm, **options)
        trained, frozen = split(state.params, self.trainable)
        at_step = jax.random.fold_in(key, state.step)
        fixed = (frozen, state.model_state)
        result = clipped(trained, fixed, batch, at_step, is_padding_example=is_padding)
        self._clipped[:] = [clipped]
        if not self.allow_coupled_examples:
            self.check_coupling(clipped.program.coupling, state, batch, key)
        check_depends_on_params(self.loss_fn, _reads(clipped.program.loss, trained))
        self.warn_of_shared_mask(clipped.program.loss, loss, (trained, fixed, batch, at_step))
        return result

    def clipping_options(self, state: TrainingState) -> dict[str, Any]:
        """The options of `plan.clipped_grad`. Examples are the argument with index 2."""
        options: dict[str, Any] = {"batch_argnums": 2, **self.clip_options}
        options |= {"return_values": True, "return_grad_norms": True}
        if self.transforms_gradients:
            transform = self.optimizer.pre_clipping_transform(state.opt_state)
            options["pre_clipping_transform"] = transform
        if self.batch_axes is not None:
            options["batch_axes"] = self.batch_axes
        return options

    def check_coupling(
        self, coupling: Coupling | None, state: TrainingState, batch: tuple[PyTree, Any], key: Any
    ) -> None:
        """Raises if the loss couples examples: `coupling` is what was found in that of a unit."""
        if self.plan.unit.name == "user":  # its loss sees one row of a user at a time
            coupling = coupling_of_rows(self.loss_fn, state, self.trainable, batch[0], key)
        if coupling is not None:
            raise FixLossError(
                f"the loss couples examples: {coupling}. {EXPLANATION} To train on one example at "
                "a time nevertheless, pass allow_coupled_examples=True to Trainer, or to fit of "
                "bevel.frameworks. Private Keras models have no such option."
            )

    def warn_of_shared_mask(
        self, program: ClosedJaxpr, loss: Callable[..., Any], arguments: tuple[PyTree, ...]
    ) -> None:
        """Warns once if dropout has the same mask for every example and step."""
        params, _, rows, _ = (len(jax.tree.leaves(tree)) for tree in arguments)
        shared = find_shared_mask(program, range(params, params + rows + 1))  # rows, then the key
        if shared is not None and not self._warned:
            self._warned.append(shared)
            warnings.warn(
                f"dropout{shared_mask_line(loss, *arguments)} draws its mask from a key that is "
                "the same for every example and step. Draw it from `prng`, the last argument of "
                "the loss; bevel.frameworks.nnx does this for models with a generator of their "
                "own.",
                stacklevel=2,
            )

    def add_noise(self, sums: PyTree, state: TrainingState, key: jax.Array) -> tuple[PyTree, Any]:
        """The noised sum: from here on, everything may be released.

        The barrier keeps the update a program of its own, which gives the same bits whatever the
        noised sum was computed from. What is released can then be rebuilt from the noised sums.
        """
        transform = self.plan.noise_addition_transform
        noised, noise_state = transform.update(sums, state.noise_state, prng_key=key)
        return jax.tree.map(jax.lax.optimization_barrier, noised), noise_state

    def update(self, noised: PyTree, state: TrainingState) -> tuple[PyTree, Any]:
        """The new parameters and optimizer state."""
        trained, frozen = split(state.params, self.trainable)
        wide = widened(trained)
        try:
            updates, opt_state = self.optimizer.update(noised, state.opt_state, wide)
        except TypeError as error:
            if "required keyword-only argument" not in str(error):
                raise
            raise FixArgumentsError(
                f"the optimizer needs more than the noised gradient ({error}), but losses and "
                "gradients without noise are not private. Use an optimizer that reads only "
                "gradients, such as optax.adam(1e-3)."
            ) from error
        new = jax.tree.map(
            lambda p, old: p.astype(old.dtype), optax.apply_updates(wide, updates), trained
        )
        return joined(new, frozen), opt_state

    def average(self, state: TrainingState, params: PyTree) -> PyTree:
        """The exponential moving average of the trained parameters, or None."""
        if self.ema_decay is None:
            return None
        step = state.step.astype(jnp.float32)
        decay = jnp.minimum(jnp.float32(self.ema_decay), (1 + step) / (10 + step))

        def moved(average: jax.Array, new: jax.Array) -> jax.Array:
            share = (1 - decay).astype(average.dtype)
            return average + share * (new - average)

        return jax.tree.map(moved, state.average, widened(split(params, self.trainable)[0]))

    def measured(
        self, state: TrainingState, batch: tuple[PyTree, Any], is_padding: jax.Array, key_data: Any
    ) -> tuple[TrainingState, dict[str, jax.Array]]:
        """A step of `fit`: the new state, and raw metrics, which are not private.

        Keys are passed as key data, so that they are arguments and not constants of the program.
        """
        noise_key = noise_keys.wrapped(key_data["noise"], self.plan.secrets.generator)
        loss_key = jax.random.wrap_key_data(key_data["loss"], impl="threefry2x32")
        new, aux, sums = self(state, batch, is_padding, loss_key, noise_key)
        clip_norm = self.plan.clip_norm(state.noise_state)
        stddev = self._noise_stddev(state.step)
        return new, measures(aux, sums, is_padding, clip_norm, stddev)

    def _noise_stddev(self, step: jax.Array) -> Any:
        """The standard deviation of the noise on one coordinate of the sum."""
        rows = self.plan.noise_row_norms()
        stddev = jnp.float32(self.plan.noise_stddev)
        return stddev if rows is None else stddev * jnp.asarray(rows, jnp.float32)[step]

    @functools.cached_property
    def jitted(self) -> Callable[..., Any]:
        """The step, compiled on its first call. The state is donated."""
        return jax.jit(self.__call__, donate_argnums=0)

    @functools.cached_property
    def _warned(self) -> list[Any]:
        return []

    @functools.cached_property
    def _clipped(self) -> list[BoundedSensitivityCallable]:
        """The clipped gradient of the loss, once a step was traced."""
        return []

    def rounding_bound(self, units: int) -> float:
        """Bounds the rounding of the clipped sum of a batch, once a step was traced.

        Args:
          units: the examples or users in the batch. Padding adds zeros, which are not rounded.
        """
        (clipped,) = self._clipped
        return clipped.rounding_bound(units)

    def digests(self, state: TrainingState) -> dict[str, str]:
        """Digests of the loss and the optimizer, once a step was traced."""
        trained = widened(split(state.params, self.trainable)[0])
        arguments = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (trained, state.opt_state, trained)
        )
        try:
            optimizer = program_digest(jax.make_jaxpr(self.optimizer.update)(*arguments))
        except Exception:  # it may need a mesh; the program's digest covers it
            optimizer = "cannot be traced by itself"
        initial = " ".join(digest(state.opt_state))  # it may contain the learning rate
        (clipped,) = self._clipped
        loss = clipped.program.loss
        return {
            "optimizer": f"{optimizer} {initial}",
            "loss": program_digest(loss),
            "loss.derivative": derivative_digest(loss),
        }


def _reads(loss: ClosedJaxpr, trained: PyTree) -> bool:
    """Whether the program of a loss, whose first inputs are the trained parameters, reads any."""
    params = set(loss.jaxpr.invars[: len(jax.tree.leaves(trained))])
    reads = (atom for eqn in loss.jaxpr.eqns for atom in eqn.invars if isinstance(atom, Var))
    return any(atom in params for atom in (*reads, *loss.jaxpr.outvars[:1]))
