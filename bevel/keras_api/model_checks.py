"""What a Keras model must be like to be trained privately, with the way out where it is not."""

import warnings
from typing import Any

from bevel.errors import FixArgumentsError, FixLossError
from bevel.keras_api.backend import keras


def check_model(model: Any) -> None:
    """Raises unless `make_private` can train this model."""
    if not isinstance(model, keras.Model):
        raise FixArgumentsError(
            f"model is a {type(model).__name__}: pass a keras.Model, such as "
            "keras.Sequential([...])."
        )
    if type(model).train_step is not keras.Model.train_step:
        raise FixArgumentsError(
            f"{type(model).__name__} has a train_step of its own, which a private model would not "
            "use. Write what it computes as compute_loss(x, y, y_pred, sample_weight), whose "
            "gradient is clipped per example, or use bevel.Trainer."
        )
    check_layers(model)


def check_layers(model: Any) -> None:
    """Raises if a layer of the model mixes examples."""
    kind = keras.layers.BatchNormalization
    for layer in model._flatten_layers():
        if isinstance(layer, kind) and layer.trainable:
            raise FixLossError(
                f"the layer {layer.name!r} is a BatchNormalization, which mixes the examples of a "
                "batch, and whose moving averages would be released without noise. Use "
                "GroupNormalization or LayerNormalization, or keep the averages of a pretrained "
                "layer with layer.trainable = False."
            )


def check_compiled(model: Any, accumulation_steps: int) -> None:
    """Raises unless the model is compiled, with an optimizer that fits."""
    if not model.compiled or model.optimizer is None:
        raise FixArgumentsError(
            "the model is not compiled: call model.compile(optimizer=..., loss=...) before fit."
        )
    optimizer = model.optimizer
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) or optimizer.loss_scale_factor:
        raise FixArgumentsError(
            "the optimizer scales the loss, which is for float16, but gradients have to be clipped "
            "at their own scale. Use keras.mixed_precision.set_dtype_policy('mixed_bfloat16'), or "
            "compile without loss scaling."
        )
    steps = optimizer.gradient_accumulation_steps
    if steps not in (None, 1, accumulation_steps):
        raise FixArgumentsError(
            f"the optimizer has gradient_accumulation_steps={steps}, but the DPKerasConfig has "
            f"{accumulation_steps}, which the noise is calibrated for. Leave it out of the "
            "optimizer."
        )
    if keras.distribution.distribution() is not None:
        raise FixArgumentsError(
            "a keras.distribution is set, which private models do not support. Use bevel.Trainer "
            "with a mesh."
        )


def warn_of_monitors(callbacks: Any) -> None:
    """Warns of callbacks that act on training metrics, which are computed without noise."""
    for callback in _listed(callbacks):
        monitor = getattr(callback, "monitor", None)
        if isinstance(monitor, str) and not monitor.startswith("val_"):
            warnings.warn(
                f"{type(callback).__name__} monitors {monitor!r}, a metric of the training data "
                "without noise, so what it decides is not private. Pass validation_data and "
                f"monitor='val_{monitor}'.",
                stacklevel=4,
            )


def _listed(callbacks: Any) -> list[Any]:
    if callbacks is None:
        return []
    inner = getattr(callbacks, "callbacks", callbacks)  # of a CallbackList
    return list(inner) if isinstance(inner, list | tuple) else [inner]
