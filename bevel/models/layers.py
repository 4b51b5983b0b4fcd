"""Layers of the built-in models, as functions of their parameters.

Nothing here mixes examples or draws random numbers. Broadcasts are explicit, so that the models
also run where implicit rank promotion is an error.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

PyTree = Any
Shape = tuple[int, ...]
_LAYOUT = ("NHWC", "HWIO", "NHWC")


def weights(key: jax.Array, shape: Shape) -> PyTree:
    """A weight with outputs along its last axis, of variance one over its inputs, and a bias."""
    inputs = math.prod(shape[:-1])
    w = jax.random.normal(key, shape, jnp.float32) / math.sqrt(inputs)
    return {"w": w, "b": jnp.zeros(shape[-1], jnp.float32)}


def zero_weights(shape: Shape) -> PyTree:
    """A zero-initialised last layer: at first, all outputs are equal for all examples."""
    return {"w": jnp.zeros(shape, jnp.float32), "b": jnp.zeros(shape[-1], jnp.float32)}


def affine(layer: PyTree, h: jax.Array) -> jax.Array:
    product = h @ layer["w"]
    return product + jnp.broadcast_to(layer["b"], product.shape)


def convolve(w: jax.Array, h: jax.Array, stride: int) -> jax.Array:
    """A convolution of images (B, height, width, channels)."""
    return jax.lax.conv_general_dilated(h, w, (stride, stride), "SAME", dimension_numbers=_LAYOUT)


def normalised(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """x with mean 0 and variance 1 over these axes, computed in float32."""
    wide = x.astype(jnp.float32)
    centred = wide - jnp.broadcast_to(wide.mean(axes, keepdims=True), x.shape)
    variance = jnp.square(centred).mean(axes, keepdims=True)
    scaled = centred * jnp.broadcast_to(jax.lax.rsqrt(variance + 1e-5), x.shape)
    return scaled.astype(x.dtype)


def norm_parameters(size: int) -> PyTree:
    return {"scale": jnp.ones(size, jnp.float32), "bias": jnp.zeros(size, jnp.float32)}


def group_norm(layer: PyTree, h: jax.Array, groups: int) -> jax.Array:
    """Normalises each example by itself, over groups of channels."""
    grouped = h.reshape(*h.shape[:-1], groups, -1)
    axes = (*range(1, h.ndim - 1), h.ndim)
    return _scaled(layer, normalised(grouped, axes).reshape(h.shape))


def layer_norm(layer: PyTree, h: jax.Array) -> jax.Array:
    return _scaled(layer, normalised(h, (h.ndim - 1,)))


def _scaled(layer: PyTree, h: jax.Array) -> jax.Array:
    scale, bias = (jnp.broadcast_to(layer[name], h.shape) for name in ("scale", "bias"))
    return h * scale + bias
