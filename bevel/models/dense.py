"""Dense layers with tanh between them, for tables; without hidden layers, a linear model."""

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp

from bevel.datasets import DataSpec
from bevel.models.layers import affine, weights, zero_weights
from bevel.models.model import Model
from bevel.models.objective import output_shape, output_size

PyTree = Any


def mlp(data: DataSpec, widths: tuple[int, ...] | None) -> Model:
    """One hidden layer by default, with 16 to 128 units, about two for each input."""
    if widths is None:
        widths = (min(max(_power_of_two(2 * math.prod(data.shape)), 16), 128),)
    return _dense(data, widths)


def linear(data: DataSpec) -> Model:
    return _dense(data, ())


def _dense(data: DataSpec, widths: tuple[int, ...]) -> Model:
    sizes = (math.prod(data.shape), *widths)

    def init(key: jax.Array) -> PyTree:
        keys = jax.random.split(key, len(sizes))
        hidden = [
            weights(k, shape) for k, shape in zip(keys[1:], itertools.pairwise(sizes), strict=True)
        ]
        return {"dense": hidden, "out": zero_weights((sizes[-1], output_size(data)))}

    def predict(params: PyTree, x: jax.Array) -> jax.Array:
        h = x.reshape(len(x), -1)
        for layer in params["dense"]:
            h = jnp.tanh(affine(layer, h))
        return affine(params["out"], h).reshape(output_shape(data, len(x)))

    return Model(init, predict)


def _power_of_two(size: int) -> int:
    """The smallest power of two that is not below `size`."""
    return 1 << (size - 1).bit_length()
