"""The layers of a residual network, and its standardised kernels."""

import jax
import numpy as np
import pytest
from model_specs import IMAGES, records

from bevel.datasets import DataSpec
from bevel.models.resnet import resnet

KEY = jax.random.key(0)


@pytest.mark.parametrize(("depth", "width", "blocks"), [(10, 1, 3), (16, 4, 6)])
def test_depth_and_width_are_those_of_a_wide_residual_network(depth, width, blocks):
    params = jax.eval_shape(resnet(IMAGES, depth, width).init, KEY)
    assert len(params["blocks"]) == blocks
    kernels = [x for x in jax.tree.leaves(params) if x.ndim == 4]
    shortcuts = [x for x in kernels if x.shape[0] == 1]
    assert len(kernels) - len(shortcuts) + 1 == depth - 4 + 2  # the last layer is dense
    assert params["out"]["w"].shape == (64 * width, 3)


def test_larger_images_have_a_wider_network():
    params = jax.eval_shape(resnet(DataSpec("image", (32, 32, 3), classes=4), None, None).init, KEY)
    assert params["out"]["w"].shape == (128, 4)


def test_the_scale_and_mean_of_a_kernel_do_not_matter():
    model = resnet(IMAGES, 10, 1)
    params = model.init(KEY)
    params["out"]["w"] = params["out"]["w"] + 0.1
    changed = params | {"stem": params["stem"] * 3 + 0.5}
    x, predict = records(IMAGES, 2)["x"], jax.jit(model.predict)
    np.testing.assert_allclose(predict(params, x), predict(changed, x), rtol=1e-2, atol=1e-3)
