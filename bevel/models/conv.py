"""A small convolutional network, for images."""

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp

from bevel.datasets import DataSpec
from bevel.models.layers import affine, convolve, weights, zero_weights
from bevel.models.model import Model
from bevel.models.objective import output_shape, output_size

PyTree = Any
_FINAL_SIDE = 8


def conv(data: DataSpec, widths: tuple[int, ...] | None) -> Model:
    """3 x 3 convolutions with tanh and a dense layer. All but the first halve the image.

    tanh rather than ReLU, because bounded activations keep the gradient norms of all examples
    similar, so clipping loses less (Papernot et al. 2021, arXiv:2007.14191). By default there are
    as many layers as it takes to get to at most 8 x 8 pixels, and at least two.
    """
    height, width, channels = data.shape
    if widths is None:
        halvings = max(1, math.ceil(math.log2(max(height, width) / _FINAL_SIDE)))
        widths = (16, *(32,) * halvings)
    strides = (1,) + (2,) * (len(widths) - 1)
    flat = widths[-1] * math.prod(math.ceil(size / math.prod(strides)) for size in (height, width))

    def init(key: jax.Array) -> PyTree:
        keys = jax.random.split(key, len(widths))
        sizes = itertools.pairwise((channels, *widths))
        layers = [weights(k, (3, 3, *size)) for k, size in zip(keys, sizes, strict=True)]
        return {"conv": layers, "out": zero_weights((flat, output_size(data)))}

    def predict(params: PyTree, x: jax.Array) -> jax.Array:
        h = x
        for stride, layer in zip(strides, params["conv"], strict=True):
            h = convolve(layer["w"], h, stride)
            h = jnp.tanh(h + jnp.broadcast_to(layer["b"], h.shape))
        # Scaled down, so that the last layer's gradient does not dominate the norm.
        outputs = affine(params["out"], h.reshape(len(h), -1) / 4)
        return outputs.reshape(output_shape(data, len(x)))

    return Model(init, predict)
