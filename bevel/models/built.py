"""The models that a config can name: conv, mlp, linear, or a function in a user's file."""

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

from bevel.datasets import DataSpec
from bevel.errors import FixArgumentsError, FixLossError
from bevel.models.options import ModelTable

PyTree = Any
Shape = tuple[int, ...]
LAYOUT = ("NHWC", "HWIO", "NHWC")


def _cross_entropy(predict: Callable[[PyTree, jax.Array], jax.Array]) -> Callable[..., Any]:
    """Softmax cross entropy of a classifier, with its accuracy as auxiliary output."""

    def loss(params: PyTree, data: PyTree, prng: jax.Array) -> tuple[jax.Array, Any]:
        logits = predict(params, data["x"])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, data["y"])
        correct = (logits.argmax(-1) == data["y"]).astype(jnp.float32)
        return losses.mean(), {"accuracy": correct.mean()}

    return loss


class Model(NamedTuple):
    """A model to train.

    Attributes:
      init: `key -> params`.
      predict: `(params, x) -> logits`, for a batch.
      loss: `(params, {"x": ..., "y": ...}, prng) -> (loss, aux)`; None means cross entropy. It is
        called with one example at a time, with a leading axis of 1, and must not mix examples.
    """

    init: Callable[[jax.Array], PyTree]
    predict: Callable[[PyTree, jax.Array], jax.Array]
    loss: Callable[..., tuple[jax.Array, Any]] | None = None

    @property
    def loss_fn(self) -> Callable[..., tuple[jax.Array, Any]]:
        return self.loss or _cross_entropy(self.predict)


def build(table: ModelTable, data: DataSpec) -> Model:
    """The model of a config, for data of this description."""
    if table.module is not None:
        built = load_function(table.module)(data)
        if not isinstance(built, Model) or not (callable(built.init) and callable(built.predict)):
            raise FixLossError(
                f"[model] module: {table.module} returned {type(built).__name__}. Return "
                "bevel.models.Model(init, predict), and pass loss if it is not cross entropy."
            )
        return built
    if any(width < 1 for width in table.widths):
        raise FixArgumentsError(f"[model] widths is {list(table.widths)}: use integers from 1 up.")
    shape, classes = data.shape, data.classes or 1
    if table.kind == "conv":
        return _conv(shape, table.widths, classes)
    return _dense(shape, table.widths if table.kind == "mlp" else (), classes)


def _dense(shape: Shape, widths: tuple[int, ...], classes: int) -> Model:
    """Dense layers with tanh between them. Without widths, a linear model."""
    sizes = (math.prod(shape), *widths, classes)

    def init(key: jax.Array) -> PyTree:
        layers = []
        for inputs, outputs in itertools.pairwise(sizes):
            key, layer_key = jax.random.split(key)
            layers.append(_layer(layer_key, (inputs, outputs), inputs))
        return {"dense": layers[:-1], "out": _zeros_like(layers[-1])}

    def predict(params: PyTree, x: jax.Array) -> jax.Array:
        h = x.reshape(len(x), -1)
        for weights in params["dense"]:
            h = jnp.tanh(_affine(weights, h))
        return _affine(params["out"], h)

    return Model(init, predict)


def _conv(shape: Shape, widths: tuple[int, ...], classes: int) -> Model:
    """3 x 3 convolutions with tanh and a dense layer. All but the first halve the image.

    tanh rather than ReLU, because bounded activations keep the gradient norms of all examples
    similar, so clipping loses less (Papernot et al. 2021, arXiv:2007.14191).
    """
    if len(shape) != 3:
        raise FixArgumentsError(
            f"[model] kind is conv, but examples of shape {shape} are not images of shape (height, "
            "width, channels): use mlp or linear."
        )
    strides = (1,) + (2,) * (len(widths) - 1)
    side = [math.ceil(size / math.prod(strides)) for size in shape[:2]]
    channels = (shape[2], *widths)

    def init(key: jax.Array) -> PyTree:
        layers = []
        for inputs, outputs in itertools.pairwise(channels):
            key, layer_key = jax.random.split(key)
            layers.append(_layer(layer_key, (3, 3, inputs, outputs), 9 * inputs))
        flat = math.prod(side) * channels[-1]
        return {"conv": layers, "out": _zeros_like(_layer(key, (flat, classes), flat))}

    def predict(params: PyTree, x: jax.Array) -> jax.Array:
        h = x
        for stride, weights in zip(strides, params["conv"], strict=True):
            h = jax.lax.conv_general_dilated(
                h, weights["w"], (stride, stride), "SAME", dimension_numbers=LAYOUT
            )
            h = jnp.tanh(h + jnp.broadcast_to(weights["b"], h.shape))
        # Scaled down, so that the last layer's gradient does not dominate the norm.
        return _affine(params["out"], h.reshape(len(h), -1) / 4)

    return Model(init, predict)


def _layer(key: jax.Array, shape: Shape, inputs: int) -> PyTree:
    w = jax.random.normal(key, shape, jnp.float32) / math.sqrt(inputs)
    return {"w": w, "b": jnp.zeros(shape[-1], jnp.float32)}


def _zeros_like(layer: PyTree) -> PyTree:
    """A zero-initialised last layer, so that all classes start out equally likely."""
    return jax.tree.map(jnp.zeros_like, layer)


def _affine(layer: PyTree, h: jax.Array) -> jax.Array:
    product = h @ layer["w"]
    return product + jnp.broadcast_to(layer["b"], product.shape)


def load_function(location: str) -> Callable[..., Any]:
    """Loads the function named by 'file.py:function'."""
    file, _, name = location.rpartition(":")
    path, field = Path(file), f"[model] module is {location!r}"
    if not file or not path.is_file():
        raise FixArgumentsError(f"{field}: write 'file.py:function' with an existing file.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise FixArgumentsError(f"{field}: {path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise FixArgumentsError(f"{field}: {path} has no function {name!r}.")
    return function
