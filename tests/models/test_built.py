"""Models have the right shapes, and a user's own model is loaded or refused with a reason."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bevel.datasets import DataSpec
from bevel.errors import FixArgumentsError, FixLossError
from bevel.models import ModelTable, build
from bevel.models.built import load_function

IMAGES = DataSpec("image", (6, 6, 1), classes=3)
X = jax.random.normal(jax.random.key(1), (5, 6, 6, 1))


@pytest.mark.parametrize("kind", ["conv", "mlp", "linear"])
def test_logits_begin_at_zero_and_examples_do_not_mix(kind):
    built = build(ModelTable(kind=kind, widths=(4, 6)), IMAGES)
    params = built.init(jax.random.key(0))
    np.testing.assert_array_equal(built.predict(params, X), np.zeros((5, 3)))
    params = jax.tree.map(lambda w: w + 0.1, params)
    one_by_one = [built.predict(params, X[i : i + 1])[0] for i in range(5)]
    np.testing.assert_allclose(built.predict(params, X), np.stack(one_by_one), rtol=1e-5, atol=1e-6)


def test_the_loss_is_cross_entropy():
    built = build(ModelTable(kind="linear"), IMAGES)
    params = {"dense": [], "out": {"w": jnp.ones((36, 3)) * 0.1, "b": jnp.array([1.0, 2.0, 3.0])}}
    y = jnp.array([0, 1, 2, 2, 2])
    loss, aux = built.loss_fn(params, {"x": X, "y": y}, None)
    logits = X.reshape(5, -1) @ params["out"]["w"] + jnp.array([[1.0, 2.0, 3.0]])
    expected = optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    np.testing.assert_allclose(aux["accuracy"], 0.6, rtol=1e-6)


def test_convolutions_need_images():
    with pytest.raises(FixArgumentsError, match=r"shape \(7,\) are not images"):
        build(ModelTable(kind="conv"), DataSpec("table", (7,), classes=3))
    with pytest.raises(FixArgumentsError, match="widths"):
        build(ModelTable(kind="mlp", widths=(0,)), DataSpec("table", (7,), classes=3))


MINE = """
import jax.numpy as jnp
from bevel.models import Model

def mine(data):
    return Model(lambda key: jnp.zeros((*data.shape, data.classes)), lambda w, x: x @ w)

def wrong(data):
    return 3

value = 3
"""


def test_a_function_in_a_file(tmp_path):
    file = tmp_path / "my_model_for_the_test.py"
    file.write_text(MINE)
    built = build(ModelTable(module=f"{file}:mine"), DataSpec("table", (2,), classes=3))
    params = built.init(jax.random.key(0))
    assert built.predict(params, jnp.ones((5, 2))).shape == (5, 3)
    with pytest.raises(FixLossError, match=r"returned int\. Return"):
        build(ModelTable(module=f"{file}:wrong"), DataSpec("table", (2,), classes=3))
    for location in (f"{file}:value", f"{file}:none", f"{tmp_path / 'none.py'}:mine", "mine"):
        with pytest.raises(FixArgumentsError, match=r"\[model\] module is"):
            load_function(location)
