"""Models for a config: a small conv net, dense layers, or a function in a file of the user's."""

import importlib.util
import itertools
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bevel.cli import config
from bevel.errors import FixArgumentsError, FixLossError

PyTree = Any
Shape = tuple[int, ...]


def _cross_entropy(predict: Callable[[PyTree, jax.Array], jax.Array]) -> Callable[..., Any]:
    """The usual loss of a classifier, with its accuracy beside it."""

    def loss(params: PyTree, data: PyTree, prng: jax.Array) -> tuple[jax.Array, Any]:
        logits = predict(params, data["x"])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, data["y"])
        right = (logits.argmax(-1) == data["y"]).astype(jnp.float32)
        return losses.mean(), {"accuracy": right.mean()}

    return loss


class Model(NamedTuple):
    """What a run trains.

    Attributes:
      init: `key -> params`.
      predict: `(params, x) -> logits`, on a batch.
      loss: `(params, {"x": ..., "y": ...}, prng) -> (loss, aux)`; None takes cross entropy. It
        sees one example at a time, with a leading axis of 1: nothing may mix examples.
    """

    init: Callable[[jax.Array], PyTree]
    predict: Callable[[PyTree, jax.Array], jax.Array]
    loss: Callable[..., tuple[jax.Array, Any]] | None = None

    @property
    def loss_fn(self) -> Callable[..., tuple[jax.Array, Any]]:
        return self.loss or _cross_entropy(self.predict)


def model(given: config.ModelTable, shape: Shape, classes: int) -> Model:
    """The model of a config, for examples of a shape."""
    if given.module is not None:
        made = loaded(given.module)(shape, classes)
        if not isinstance(made, Model) or not (callable(made.init) and callable(made.predict)):
            raise FixLossError(
                f"{given.module} gave a {type(made).__name__}: return "
                "bevel.cli.models.Model(init, predict), with a loss where it is another than "
                "cross entropy."
            )
        return made
    if any(width < 1 for width in given.widths):
        raise FixArgumentsError(f"widths={given.widths}: give whole numbers from 1 on.")
    if given.kind == "conv":
        return _conv(shape, given.widths, classes)
    return _dense(shape, given.widths if given.kind == "mlp" else (), classes)


def _dense(shape: Shape, widths: tuple[int, ...], classes: int) -> Model:
    """Dense layers with tanh between them; none but the last for a linear model."""
    sizes = (math.prod(shape), *widths, classes)

    def init(key: jax.Array) -> PyTree:
        layers = []
        for inputs, outputs in itertools.pairwise(sizes):
            key, here = jax.random.split(key)
            layers.append(_layer(here, (inputs, outputs), inputs))
        return {"dense": layers[:-1], "out": _at_zero(layers[-1])}

    def predict(params: PyTree, x: jax.Array) -> jax.Array:
        h = x.reshape(len(x), -1)
        for weights in params["_dense"]:
            h = jnp.tanh(_affine(weights, h))
        return _affine(params["out"], h)

    return Model(init, predict)


def _conv(shape: Shape, widths: tuple[int, ...], classes: int) -> Model:
    """3 x 3 convolutions with tanh, all but the first halving the image, and a dense layer.

    tanh rather than ReLU: bounded activations keep gradients of all examples alike, and less is
    lost by clipping them (Papernot et al. 2021, arXiv:2007.14191).
    """
    if len(shape) != 3:
        raise FixArgumentsError(
            f"examples of shape {shape} are no images (height, width, channels): use kind='mlp'."
        )
    strides = (1,) + (2,) * (len(widths) - 1)
    side = [math.ceil(size / math.prod(strides)) for size in shape[:2]]
    channels = (shape[2], *widths)

    def init(key: jax.Array) -> PyTree:
        layers = []
        for inputs, outputs in itertools.pairwise(channels):
            key, here = jax.random.split(key)
            layers.append(_layer(here, (3, 3, inputs, outputs), 9 * inputs))
        flat = math.prod(side) * channels[-1]
        return {"conv": layers, "out": _at_zero(_layer(key, (flat, classes), flat))}

    def predict(params: PyTree, x: jax.Array) -> jax.Array:
        h = x
        for stride, weights in zip(strides, params["_conv"], strict=True):
            h = jax.lax.conv_general_dilated(
                h,
                weights["w"],
                (stride, stride),
                "SAME",
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
            )
            h = jnp.tanh(h + jnp.broadcast_to(weights["b"], h.shape))
        # Scaled down, so that the last layer does not take all of the clip norm.
        return _affine(params["out"], h.reshape(len(h), -1) / 4)

    return Model(init, predict)


def _layer(key: jax.Array, shape: Shape, inputs: int) -> PyTree:
    w = jax.random.normal(key, shape, jnp.float32) / math.sqrt(inputs)
    return {"w": w, "b": jnp.zeros(shape[-1], jnp.float32)}


def _at_zero(layer: PyTree) -> PyTree:
    """A last layer that begins without a guess."""
    return jax.tree.map(jnp.zeros_like, layer)


def _affine(layer: PyTree, h: jax.Array) -> jax.Array:
    product = h @ layer["w"]
    return product + jnp.broadcast_to(layer["b"], product.shape)


def loaded(place: str) -> Callable[..., Any]:
    """The function named by 'file.py:function'."""
    file, _, name = place.rpartition(":")
    path = Path(file)
    if not file or not path.is_file():
        raise FixArgumentsError(f"module={place!r}: write 'file.py:function', with a file there.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise FixArgumentsError(f"module={place!r}: {path} is no Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    found = getattr(module, name, None)
    if not callable(found):
        raise FixArgumentsError(f"module={place!r}: {path} has no function {name!r}.")
    return found
