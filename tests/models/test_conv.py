"""The number of convolutions follows from the size of the image."""

import jax
import pytest

from bevel.datasets import DataSpec
from bevel.models.conv import conv


@pytest.mark.parametrize(
    ("shape", "layers", "flat"),
    [
        ((6, 6, 1), 2, 9 * 32),
        ((8, 8, 1), 2, 16 * 32),
        ((28, 28, 1), 3, 49 * 32),
        ((32, 48, 3), 4, 4 * 6 * 32),
    ],
)
def test_images_shrink_to_at_most_eight_pixels(shape, layers, flat):
    params = jax.eval_shape(conv(DataSpec("image", shape, classes=5), None).init, jax.random.key(0))
    assert len(params["conv"]) == layers
    assert params["conv"][0]["w"].shape == (3, 3, shape[2], 16)
    assert params["out"]["w"].shape == (flat, 5)
