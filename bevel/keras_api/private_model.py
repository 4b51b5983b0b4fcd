"""`make_private`: makes the `fit` of a Keras model private."""

from typing import Any

from bevel.errors import FixArgumentsError
from bevel.keras_api.backend import check_backend
from bevel.keras_api.config import DPKerasConfig
from bevel.keras_api.model_checks import check_model
from bevel.keras_api.private_training import PrivateTraining


def make_private(model: Any, params: DPKerasConfig) -> Any:
    """Makes `fit` and `train_step` of a Keras model private, and returns the same model.

        model = make_private(model, DPKerasConfig(epsilon=3, delta=1e-5, ...))
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        model.fit(x, y, epochs=10, validation_data=(x_test, y_test))

    `fit` samples batches by the config, clips the gradient of every example, adds noise to their
    sum, and passes the result to the model's optimizer. It takes the arguments of Keras's `fit`:
    epochs, callbacks, validation data, sample weights. The loss is what the model was compiled
    with, its `compute_loss`, and the losses that its layers add, for one example at a time.

    Formal guarantee: the weights and the optimizer after every step, and with them everything that
    is computed from these without the training data, have the guarantee of the config
    (`DPKerasConfig`). Two things are not private:

    - The training metrics: the loss and metrics in the `History`, in the progress bar and in the
      logs of callbacks are computed from the training data without noise. Do not publish them, and
      do not choose a model by them. Metrics of validation data are fine if these data are public
      or protected otherwise.
    - What other runs release: steps are counted for this model object, and by the optimizer's
      iterations if you load a saved model. There is no ledger; `bevel.Trainer` keeps one.

    | first-day question                | answer                                                   |
    | --------------------------------- | -------------------------------------------------------- |
    | an epoch                          | has `train_size // effective_batch_size` steps, unless   |
    |                                   | you pass `steps_per_epoch`; a step is an update          |
    | more steps than `train_steps`     | refused: the budget would be exceeded                    |
    | BatchNormalization                | refused, unless its `trainable` is False                 |
    | dropout                           | every example has its own mask                           |
    | variables that are not trained    | stay as they are                                         |
    | `mixed_bfloat16`                  | supported; sums and noise are float32                    |
    | a model that is loaded or cloned  | is not private: call `make_private` again                |
    | `mixed_float16`, `keras.distribution`, generators, `class_weight` | refused with advice      |

    Args:
      model: a `keras.Model` on the JAX backend, compiled now or later.
      params: the budget, clipping and batches. The noise multiplier is calibrated if it is None.

    Raises:
      FixArgumentsError: the backend, model or config cannot be used.
      FixLossError: a layer mixes examples.
    """
    check_backend()
    if not isinstance(params, DPKerasConfig):
        raise FixArgumentsError(
            f"params is a {type(params).__name__}: pass DPKerasConfig(epsilon=..., delta=..., ...)."
        )
    check_model(model)
    before = _training_of(model)
    if before is not None and before.steps_taken:
        if before.config == params:
            return model  # a cell of a notebook that was run again
        raise FixArgumentsError(
            f"the model is private already, and took {before.steps_taken} steps with another "
            "config, which the new one would not count. Make a new model."
        )
    training = PrivateTraining(model, params, params.make_plan())
    for name in ("fit", "train_step", "train_on_batch", "make_train_function"):
        setattr(model, name, getattr(training, name))
    model.get_noise_multiplier = training.get_noise_multiplier
    model.train_function = None
    return model


def get_noise_multiplier(model: Any) -> float:
    """The noise multiplier that a private model is trained with."""
    training = _training_of(model)
    if training is None:
        raise FixArgumentsError("the model is not private: call make_private(model, config) first.")
    return training.get_noise_multiplier()


def _training_of(model: Any) -> PrivateTraining | None:
    owner = getattr(getattr(model, "get_noise_multiplier", None), "__self__", None)
    return owner if isinstance(owner, PrivateTraining) else None
