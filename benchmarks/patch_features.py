"""Fixed features of small images, which come from no data but images that a program draws.

The features follow Coates and Ng (2011): how much each place of an image looks like each of many
small patches, after whitening. The patches, the whitening and the mean of the features come from
"dead leaves", random shapes that cover one another, whose edges and colours are statistically like
those of photographs (Lee, Mumford and Huang 2001). Each image is transformed on its own, so the
features cost no privacy.
"""

import functools
import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

SIDE = 6  # of a patch
IMAGES = 500  # that are drawn
CONTRAST = 10 / 255  # patches with less contrast than this count as flat
FLOOR = 0.1  # what is added to the variances before whitening, relative to their mean
THRESHOLD = 1.0  # responses below this count as 0
CHUNK = 250  # images that are transformed at a time


class PatchFeatures(NamedTuple):
    """Features of images of one size.

    Attributes:
      kernels: the whitened patches, (SIDE, SIDE, channels, count). Each sums to 0.
      mean: the mean feature vector of the drawn images.
      stride: pixels between the places where patches are compared.
      grid: an image is divided into grid x grid parts, and responses are averaged in each.
      mirror: whether an image and its mirror image have the same features.
    """

    kernels: np.ndarray
    mean: np.ndarray
    stride: int
    grid: int
    mirror: bool

    @classmethod
    def of(
        cls, size: int, channels: int, count: int, *, stride: int, grid: int, mirror: bool
    ) -> "PatchFeatures":
        """Draws images and takes `count` patches from them. The result is always the same."""
        random = np.random.default_rng(0)
        images = np.stack([dead_leaves(random, size) for _ in range(IMAGES)])
        if channels == 1:
            images = images.mean(axis=-1, keepdims=True)
        patches = _patches(images)
        values, vectors = np.linalg.eigh(patches.T @ patches / len(patches))
        widths = np.sqrt(np.maximum(values, 0) + FLOOR * values.mean())
        whitening = (vectors / widths) @ vectors.T
        textured = patches[(patches**2).mean(axis=1) > 0.3]
        chosen = textured[random.choice(len(textured), count, replace=False)] @ whitening
        chosen /= np.linalg.norm(chosen, axis=1, keepdims=True)
        kernels = (chosen @ whitening).T
        kernels -= kernels.mean(axis=0)  # so the mean of a patch does not matter
        kernels = kernels.reshape(SIDE, SIDE, channels, count).astype(np.float32)
        made = cls(kernels, np.zeros(()), stride, grid, mirror)
        return made._replace(mean=made._uncentred(images.astype(np.float32)).mean(axis=0))

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """uint8 images (N, H, W, C) to feature vectors of length 1, in float32."""
        features = self._uncentred(images) - self.mean
        return features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-6)

    def _uncentred(self, images: np.ndarray) -> np.ndarray:
        kernels = jnp.asarray(self.kernels)

        def of(part: np.ndarray) -> np.ndarray:
            x = jnp.asarray(part)
            if part.dtype == np.uint8:
                x = x.astype(jnp.float32) / 255
            found = _averages(x, kernels, self.stride, self.grid)
            if self.mirror:
                found = found + _averages(x[:, :, ::-1], kernels, self.stride, self.grid)
            return np.asarray(jnp.sqrt(found))

        return np.concatenate([of(images[i : i + CHUNK]) for i in range(0, len(images), CHUNK)])


@functools.partial(jax.jit, static_argnums=(2, 3))
def _averages(x: jax.Array, kernels: jax.Array, stride: int, grid: int) -> jax.Array:
    """The mean response to each patch and to its negative, in each part of the images."""
    channels, count = kernels.shape[2:]
    convolve = functools.partial(
        jax.lax.conv_general_dilated,
        window_strides=(stride, stride),
        padding="VALID",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    box = jnp.full((SIDE, SIDE, channels, 1), 1 / (SIDE * SIDE * channels), jnp.float32)
    variance = jnp.maximum(convolve(x**2, box) - convolve(x, box) ** 2, 0.0)
    responses = convolve(x, kernels) / jnp.sqrt(variance + CONTRAST**2)
    rectified = [jax.nn.relu(sign * responses - THRESHOLD) for sign in (1.0, -1.0)]
    both = jnp.concatenate(rectified, axis=-1)
    places = both.shape[1]
    edges = [round(k * places / grid) for k in range(grid + 1)]
    parts = list(itertools.pairwise(edges))
    means = [both[:, a:b, c:d].mean(axis=(1, 2)) for a, b in parts for c, d in parts]
    return jnp.stack(means, axis=1).reshape(len(x), grid * grid * 2 * count)


def _patches(images: np.ndarray) -> np.ndarray:
    """All patches at a distance of three pixels, with mean 0 and variance near 1."""
    windows = np.lib.stride_tricks.sliding_window_view(images, (SIDE, SIDE), axis=(1, 2))
    windows = np.moveaxis(windows[:, ::3, ::3], 3, -1)  # (N, rows, columns, SIDE, SIDE, channels)
    flat = windows.reshape(-1, SIDE * SIDE * images.shape[-1])
    flat = flat - flat.mean(axis=1, keepdims=True)
    return flat / np.sqrt((flat**2).mean(axis=1, keepdims=True) + CONTRAST**2)


def dead_leaves(random: np.random.Generator, size: int) -> np.ndarray:
    """An image (size, size, 3) with values from 0 to 1: shapes that cover one another."""
    rows, columns = np.mgrid[:size, :size]
    image = np.zeros((size, size, 3))
    free = np.ones((size, size), bool)  # from the uppermost shape to the lowest
    while free.any():
        # The distribution of sizes that makes pictures look alike at all scales.
        radius = (2.0**-2 - (2.0**-2 - 20.0**-2) * random.uniform()) ** -0.5
        row, column = random.uniform(-5, size + 5, 2)
        angle, aspect = random.uniform(0, math.pi), math.exp(random.normal() / 2)
        along = (columns - column) * math.cos(angle) + (rows - row) * math.sin(angle)
        across = (rows - row) * math.cos(angle) - (columns - column) * math.sin(angle)
        along, across = along / (radius * aspect), across / (radius / aspect)
        if random.uniform() < 0.5:
            inside = np.maximum(np.abs(along), np.abs(across)) < 1
        else:
            inside = along**2 + across**2 < 1
        shade = random.normal(size=2) / 100
        colour = np.clip(random.uniform() + 0.12 * random.normal(size=3), 0, 1)
        lit = shade[0] * (columns - column) + shade[1] * (rows - row)
        inside &= free
        image[inside] = colour + lit[inside][:, None]
        free &= ~inside
    for axis in (0, 1):  # smooth edges
        image = image / 2 + (np.roll(image, 1, axis) + np.roll(image, -1, axis)) / 4
    return np.clip(image + random.normal(size=image.shape) / 100, 0, 1)
