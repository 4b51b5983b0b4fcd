"""The [augmentation] table of a config: random views of images, clipped as one example."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bevel.checks import flag, instance, whole_number
from bevel.datasets.data_set import DataSpec
from bevel.errors import FixArgumentsError
from bevel.training.contribution import Augmentation

PyTree = Any


@dataclasses.dataclass(frozen=True)
class AugmentationTable:
    """Random views of each image. Nothing here changes epsilon."""

    views: int = 1
    """Views of an image in a step, averaged before clipping. A step costs as much for each."""
    flip: bool = False
    """Mirror images left to right, half of the time."""
    crop: int = 0
    """Shift images by up to this many pixels, and fill the border by reflection."""

    def __post_init__(self) -> None:
        whole_number("views", self.views, 1, 2**20, "All views of an example are held at once.")
        flag("flip", self.flip)
        whole_number("crop", self.crop, 0, 2**16, "Images are smaller.")


def augmentation_of(table: AugmentationTable, data: DataSpec) -> Augmentation | None:
    """The augmentation of a config, or None if it asks for none.

    Raises:
      FixArgumentsError: the data are not images, or all views would be equal.
    """
    instance("table", table, AugmentationTable, "AugmentationTable(...)")
    instance("data", data, DataSpec, "DataSpec(...)")
    if table == AugmentationTable():
        return None
    if data.kind != "image":
        raise FixArgumentsError(
            f"[augmentation] flips and shifts images, but the data are of kind {data.kind}: remove "
            "the table, or augment in a loss of your own."
        )
    smallest = min(data.shape[:2])
    if table.crop >= smallest:
        raise FixArgumentsError(
            f"[augmentation] crop is {table.crop}: use 0 to {smallest - 1} for images of "
            f"{data.shape[0]} x {data.shape[1]} pixels."
        )
    if not (table.flip or table.crop):
        raise FixArgumentsError(
            f"[augmentation] has {table.views} views, which would all be equal: set flip or crop."
        )
    return Augmentation(_augment(table.flip, table.crop), table.views)


def _augment(flip: bool, crop: int) -> Callable[[PyTree, jax.Array], PyTree]:
    """`(data, prng) -> data` for one image, as a batch of size 1."""

    def augment(data: PyTree, prng: jax.Array) -> PyTree:
        x = data["x"]
        flip_key, crop_key = jax.random.split(prng)
        if crop:
            border = ((0, 0), (crop, crop), (crop, crop), (0, 0))
            padded = jnp.pad(x, border, mode="reflect")
            top, left = jax.random.randint(crop_key, (2,), 0, 2 * crop + 1)
            zero = jnp.zeros_like(top)
            x = jax.lax.dynamic_slice(padded, (zero, top, left, zero), x.shape)
        if flip:
            x = jnp.where(jax.random.bernoulli(flip_key), x[:, :, ::-1], x)
        return {**data, "x": x}

    return augment
