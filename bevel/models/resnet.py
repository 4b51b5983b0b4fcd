"""A wide residual network with GroupNorm and weight standardisation, for images."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from bevel.datasets import DataSpec
from bevel.errors import FixArgumentsError
from bevel.models.layers import (
    affine,
    convolve,
    group_norm,
    norm_parameters,
    normalised,
    zero_weights,
)
from bevel.models.model import Model
from bevel.models.objective import output_shape, output_size

PyTree = Any
_CHANNELS = 16
_STRIDES = (1, 2, 2)


def resnet(data: DataSpec, depth: int | None, width: int | None) -> Model:
    """WRN-depth-width, with the changes that private training wants (De et al. 2022).

    GroupNorm takes the place of BatchNorm, which mixes examples, and the kernels of convolutions
    are standardised before they are used (arXiv:2204.13650). The activation is smooth (SiLU). The
    depth is 6 n + 4 for n blocks in each of the three stages, by default 10; the default width is
    1 for images up to 16 pixels, and 2 for larger ones.
    """
    depth = 10 if depth is None else depth
    width = (1 if max(data.shape[:2]) <= 16 else 2) if width is None else width
    blocks, rest = divmod(depth - 4, 6)
    if blocks < 1 or rest:
        raise FixArgumentsError(
            f"[model] depth is {depth}: a resnet has 6 n + 4 layers, so use 10, 16, 22 or 28."
        )
    # (channels in, channels out, stride) of each block.
    shapes = []
    channels = _CHANNELS
    for stage, stride in enumerate(_STRIDES):
        outputs = _CHANNELS * width * 2**stage
        for number in range(blocks):
            shapes.append((channels, outputs, stride if number == 0 else 1))
            channels = outputs

    def init(key: jax.Array) -> PyTree:
        keys = iter(jax.random.split(key, 1 + 3 * len(shapes)))

        def kernel(side: int, inputs: int, outputs: int) -> jax.Array:
            shape = (side, side, inputs, outputs)
            return jax.random.normal(next(keys), shape, jnp.float32) / math.sqrt(side**2 * inputs)

        def block(inputs: int, outputs: int, stride: int) -> PyTree:
            made = {
                "norm1": norm_parameters(inputs),
                "conv1": kernel(3, inputs, outputs),
                "norm2": norm_parameters(outputs),
                "conv2": kernel(3, outputs, outputs),
            }
            if inputs != outputs or stride > 1:
                made["shortcut"] = kernel(1, inputs, outputs)
            return made

        return {
            "stem": kernel(3, data.shape[2], _CHANNELS),
            "blocks": [block(*shape) for shape in shapes],
            "norm": norm_parameters(channels),
            "out": zero_weights((channels, output_size(data))),
        }

    def predict(params: PyTree, x: jax.Array) -> jax.Array:
        h = convolve(_standardised(params["stem"]), x, 1)
        for (_, _, stride), layer in zip(shapes, params["blocks"], strict=True):
            active = _activated(layer["norm1"], h)
            if "shortcut" in layer:
                h = convolve(_standardised(layer["shortcut"]), active, stride)
            active = convolve(_standardised(layer["conv1"]), active, stride)
            active = _activated(layer["norm2"], active)
            h = h + convolve(_standardised(layer["conv2"]), active, 1)
        pooled = _activated(params["norm"], h).mean((1, 2))
        return affine(params["out"], pooled).reshape(output_shape(data, len(x)))

    return Model(init, predict)


def _activated(norm: PyTree, h: jax.Array) -> jax.Array:
    return jax.nn.silu(group_norm(norm, h, groups=8))


def _standardised(kernel: jax.Array) -> jax.Array:
    """The kernel with mean 0, and variance one over its inputs, for each output channel."""
    return normalised(kernel, (0, 1, 2)) / math.sqrt(math.prod(kernel.shape[:3]))
