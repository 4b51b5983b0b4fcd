"""Private `fit` and `train_step` of one Keras model: Keras's loop around bevel's step."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bevel.errors import FixArgumentsError, StopRunError
from bevel.execution_plan import DPExecutionPlan
from bevel.keras_api.config import DPKerasConfig
from bevel.keras_api.metrics import updated_metrics
from bevel.keras_api.model_checks import check_compiled, check_layers, warn_of_monitors
from bevel.keras_api.model_loss import DATA, model_loss, model_state_of
from bevel.keras_api.training_data import FirstRow, split_validation, training_data
from bevel.noise_addition import keys as noise_keys
from bevel.training import Trainer, TrainingState
from bevel.training.batches import Batch, Batches
from bevel.training.data import ArraySource
from bevel.training.loop import loss_key_data
from bevel.training.prefetch import Prefetched

PyTree = Any
# The values of the trainable, non-trainable, optimizer and metrics variables.
KerasState = tuple[list[Any], list[Any], list[Any], list[Any]]
# Most batches are padded to the first of these sizes, so the other is rarely compiled.
PADDED_SIZES = 2


class PrivateTraining:
    """The methods that `make_private` binds onto a model, and how many steps the model took."""

    def __init__(self, model: Any, config: DPKerasConfig, plan: DPExecutionPlan) -> None:
        self.model, self.config, self.plan = model, config, plan
        self.steps_taken = 0
        self._selected: Iterator[Batch] | None = None

    def get_noise_multiplier(self) -> float:
        """The standard deviation of the noise, relative to the clip norm."""
        assert self.plan.mechanism.noise_multiplier is not None
        return self.plan.mechanism.noise_multiplier

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: Any = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: Any = 1,
    ) -> Any:
        """Trains privately. The arguments and the `History` are those of Keras's `fit`.

        The logs of the training data in the `History` are not private: see `make_private`.

        Args:
          x, y, sample_weight: arrays, or dicts or lists of them, with `train_size` rows. The
            weight of an example scales its loss before its gradient is clipped.
          batch_size: as in the config, or None. For validation, see `validation_batch_size`.
          shuffle: must be True: batches are random.
          class_weight: not supported; pass `sample_weight`.
          steps_per_epoch: updates of the optimizer per epoch; by default
            `train_size // effective_batch_size`.
          others: as in Keras.

        Raises:
          StopRunError: all epochs together have more steps than are left. Nothing was trained.
        """
        self._check_arguments(batch_size, shuffle, class_weight)
        warn_of_monitors(callbacks)
        if validation_split and validation_data is None:
            given = (x, y, sample_weight)
            (x, y, sample_weight), validation_data = split_validation(given, validation_split)
        source = training_data(x, y, sample_weight, self.config.train_size)
        steps = steps_per_epoch or self.config.train_size // self.config.effective_batch_size
        self._prepare()
        self._check_steps(initial_epoch, epochs, steps)
        with Prefetched(lambda: self._batches(source).since(self.steps_taken)) as selected:
            self._selected = selected
            try:
                return type(self.model).fit(
                    self.model,
                    FirstRow(source, steps),
                    epochs=epochs,
                    verbose=verbose,
                    callbacks=callbacks,
                    validation_data=validation_data,
                    initial_epoch=initial_epoch,
                    validation_steps=validation_steps,
                    validation_batch_size=validation_batch_size or self.config.batch_size,
                    validation_freq=validation_freq,
                )
            finally:
                self._selected = None

    def train_step(self, state: KerasState, data: Any) -> tuple[dict[str, Any], KerasState]:
        """Takes one private step by hand: `logs, state = model.train_step(state, (x, y))`.

        The step counts against `train_steps`. You select the batch, so it is up to you that batches
        are drawn as the config says. The call compiles itself: do not wrap it in `jax.jit`, which
        would add the noise of the same step at every call.
        """
        rows = data if isinstance(data, tuple | list) else (data,)
        named = zip(DATA, rows, strict=False)
        columns = {name: jax.tree.map(jnp.asarray, v) for name, v in named if v is not None}
        leaves = jax.tree.leaves((state, columns))
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            raise FixArgumentsError(
                "train_step of a private model was traced, for example by jax.jit, but it has to "
                "count its steps. Call it as it is: it is compiled already."
            )
        self._prepare()
        self.make_train_function()  # forgets the step of a model that was compiled again
        is_padding = jnp.zeros(len(jax.tree.leaves(columns)[0]), bool)
        return self._take_step(self._compiled, state, columns, is_padding)

    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Refused: see the message."""
        raise FixArgumentsError(
            "train_on_batch of a private model is not supported, because epsilon depends on how "
            "batches are drawn. Use fit, or train_step with batches that you sample yourself."
        )

    def make_train_function(self, force: bool = False) -> None:
        """Sets the function that Keras's `fit` calls for every step of an epoch."""
        if self.model.train_function is not None and not force:
            return
        for name in ("_trainer", "_compiled", "_compiled_in_place"):
            vars(self).pop(name, None)  # they have the loss and the optimizer of before

        def train_function(state: KerasState, iterator: Iterator[Any]) -> Any:
            logs: dict[str, Any] = {}
            for number in range(self.model.steps_per_execution):
                if next(iterator, None) is None and number:
                    break  # the epoch has ended
                if self._selected is None:
                    raise FixArgumentsError("call fit of the private model, not of its class.")
                batch = next(self._selected)
                logs, state = self._take_step(
                    self._compiled_in_place, state, batch.data, batch.is_padding
                )
            return logs, state

        self.model.train_function = train_function

    def _take_step(
        self, compiled: Callable[..., Any], state: KerasState, data: PyTree, is_padding: jax.Array
    ) -> Any:
        """Takes a step with the noise of its number, which is then never used again."""
        if self.steps_taken >= self.config.train_steps:
            raise StopRunError(
                f"the model took all {self.config.train_steps} steps that its noise is calibrated "
                "for: one more would exceed the privacy budget."
            )
        state = _committed(state, next(iter(is_padding.devices())))
        result = compiled(state, np.uint32(self.steps_taken), data, is_padding, self._key_data)
        self.steps_taken += 1
        return result

    def _step(
        self,
        state: KerasState,
        step: jax.Array,
        data: PyTree,
        is_padding: jax.Array,
        key_data: PyTree,
    ) -> tuple[dict[str, Any], KerasState]:
        """One step on the arrays of a model: clip, add noise, update, and measure."""
        trained, others, optimizer, metrics = state
        if not trained:
            raise FixArgumentsError(
                "the model has no trainable variables: set trainable = True for some of its layers."
            )
        private, noise = self._trainer.step, self.plan.noise_addition_transform
        now = TrainingState(
            step=step,
            params=list(trained),
            opt_state=None,
            noise_state=noise.init(list(trained))._replace(step=step),
            model_state=model_state_of(self.model, others),
        )
        # As arguments and not constants of the program, like in `PrivateStep.measured`.
        noise_key = noise_keys.wrapped(key_data["noise"], self.plan.secrets.generator)
        loss_key = jax.random.wrap_key_data(key_data["loss"], impl="threefry2x32")
        sums, aux = private.clip(now, (data, None), is_padding, loss_key)
        noised, _ = private.add_noise(sums, now, noise_key)
        new, optimizer = self.model.optimizer.stateless_apply(optimizer, noised, trained)
        variables = [*self.model.trainable_variables, *self.model.non_trainable_variables]
        weights = list(zip(variables, [*trained, *others], strict=True))
        logs, metrics = updated_metrics(
            self.model, metrics, weights, data, aux.aux["y_pred"], aux.values, is_padding
        )
        return logs, (new, others, optimizer, metrics)

    @functools.cached_property
    def _compiled(self) -> Callable[..., Any]:
        return jax.jit(self._step) if self._compiles else self._step

    @functools.cached_property
    def _compiled_in_place(self) -> Callable[..., Any]:
        return jax.jit(self._step, donate_argnums=0) if self._compiles else self._step

    @property
    def _compiles(self) -> bool:
        return bool(self.model.jit_compile and not self.model.run_eagerly)

    @functools.cached_property
    def _trainer(self) -> Trainer:
        """Holds the private step. Its optimizer is not used: Keras's takes the noised gradient."""
        return Trainer(config=self.plan, loss_fn=model_loss(self.model), optimizer=optax.identity())

    @functools.cached_property
    def _key_data(self) -> dict[str, np.ndarray]:
        secrets = self.plan.secrets
        noise = np.asarray(jax.random.key_data(secrets.noise_key))
        return {"noise": noise, "loss": loss_key_data(secrets.sampling_seed)}

    def _batches(self, source: ArraySource) -> Batches:
        return Batches(
            source,
            self.plan.batch_selection_strategy,
            len(source),
            sizes=self.plan.padded_sizes(count=PADDED_SIZES),
            microbatch_size=self.plan.flags.microbatch_size,
            seed=self.plan.secrets.sampling_seed,
        )

    def _prepare(self) -> None:
        """Checks the model, which may have changed, and counts the steps that it was saved with."""
        check_compiled(self.model, self.config.gradient_accumulation_steps)
        check_layers(self.model)
        optimizer = self.model.optimizer
        self.steps_taken = max(self.steps_taken, int(optimizer.iterations))
        # A step takes all batches of an update, so that noise is added once.
        optimizer.gradient_accumulation_steps = None

    def _check_arguments(self, batch_size: Any, shuffle: Any, class_weight: Any) -> None:
        if batch_size not in (None, self.config.batch_size):
            raise FixArgumentsError(
                f"batch_size={batch_size}, but the DPKerasConfig has batch_size="
                f"{self.config.batch_size}, which the noise is calibrated for. Leave it out of fit."
            )
        if not shuffle:
            raise FixArgumentsError(
                "shuffle=False: epsilon relies on random batches. Leave it out of fit."
            )
        if class_weight is not None:
            raise FixArgumentsError(
                "class_weight is not supported: pass the weight of each example as sample_weight."
            )

    def _check_steps(self, initial_epoch: int, epochs: int, steps_per_epoch: int) -> None:
        """Raises if the epochs of `fit` have more steps than are left."""
        left = max(0, self.config.train_steps - self.steps_taken)
        asked = max(0, epochs - initial_epoch)
        if asked * steps_per_epoch <= left:
            return
        advice = "Make a new model"
        if left >= steps_per_epoch:
            advice = f"Pass epochs={initial_epoch + left // steps_per_epoch}"
        elif left:
            advice = f"Pass epochs={initial_epoch + 1}, steps_per_epoch={left}"
        raise StopRunError(
            f"fit asks for {_counted(asked * steps_per_epoch, 'step')} in "
            f"{_counted(asked, 'epoch')}, but only {left} of the "
            f"{self.config.train_steps} steps that the noise is calibrated for are left: the "
            f"privacy budget would be exceeded. {advice}, or calibrate for more train_steps."
        )


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _committed(state: KerasState, device: Any) -> KerasState:
    """Commits arrays to a device: jit compiles again for each mixture of those that are or not."""

    def commit(x: Any) -> Any:
        return x if getattr(x, "committed", False) else jax.device_put(x, device)

    return jax.tree.map(commit, state)
