"""Augmented views are flipped and shifted images with the label of the example."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bevel.datasets import AugmentationTable, DataSpec, augmentation_of
from bevel.errors import FixArgumentsError

IMAGES = DataSpec("image", (6, 5, 2), classes=3)


def one_image():
    return {"x": jnp.arange(60, dtype=jnp.float32).reshape(1, 6, 5, 2), "y": jnp.array([1])}


def views_of(table, count):
    augment = augmentation_of(table, IMAGES).augment
    keys = jax.random.split(jax.random.key(0), count)
    return np.asarray(jax.vmap(lambda key: augment(one_image(), key)["x"][0])(keys))


def test_without_a_table_nothing_is_augmented():
    assert augmentation_of(AugmentationTable(), IMAGES) is None


def test_flips_mirror_about_half_of_the_views():
    x = np.asarray(one_image()["x"][0])
    views = views_of(AugmentationTable(flip=True), 64)
    flipped = [np.array_equal(view, x[:, ::-1]) for view in views]
    same = [np.array_equal(view, x) for view in views]
    assert sum(flipped) + sum(same) == 64
    assert 16 < sum(flipped) < 48


def test_crops_are_shifts_of_the_image_with_a_reflected_border():
    x = np.asarray(one_image()["x"][0])
    padded = np.pad(x, ((2, 2), (2, 2), (0, 0)), mode="reflect")
    shifts = {(i, j): padded[i : i + 6, j : j + 5].tobytes() for i in range(5) for j in range(5)}
    found = {view.tobytes() for view in views_of(AugmentationTable(crop=2), 400)}
    assert found == set(shifts.values())


def test_labels_and_the_number_of_views_are_kept():
    augmentation = augmentation_of(AugmentationTable(views=3, crop=1), IMAGES)
    assert augmentation.views == 3
    assert augmentation.augment(one_image(), jax.random.key(0))["y"] == 1


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"views": 2}, "all be equal: set flip or crop"),
        ({"views": 0, "flip": True}, "views=0: pass an integer of at least 1"),
        ({"crop": 5}, "crop is 5: use 0 to 4 for images of 6 x 5 pixels"),
        ({"crop": -1}, "crop=-1: pass an integer of at least 0"),
    ],
)
def test_wrong_tables_are_refused(table, message):
    with pytest.raises(FixArgumentsError, match=message):
        augmentation_of(AugmentationTable(**table), IMAGES)


def test_only_images_are_augmented():
    with pytest.raises(FixArgumentsError, match="of kind table: remove the table"):
        augmentation_of(AugmentationTable(flip=True), DataSpec("table", (4,), classes=2))
