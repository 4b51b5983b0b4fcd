"""A model that cannot be trained is refused before training, with the shapes that were found."""

import jax
import numpy as np
import pytest
from model_specs import IMAGES, NEXT, SPECS, TABLE

from bevel.errors import FixLossError
from bevel.models.model_checks import example_types
from bevel.models.own_model import own_model

pytestmark = pytest.mark.usefixtures("standard_promotion")
CODE = """
import jax.numpy as jnp
from bevel.models import Model

def build(data):
    weights = lambda *shape: (lambda key: jnp.zeros(shape))
    return {}
"""


def make(tmp_path, spec, expression):
    path = tmp_path / "mine.py"
    path.write_text(CODE.format(expression))
    return own_model(f"{path}:build", spec, 0)


@pytest.mark.parametrize(
    ("name", "expression"),
    [
        ("table", "Model(weights(5, 3), lambda w, x: x @ w)"),
        ("numbers", "Model(weights(5), lambda w, x: x @ w)"),
        ("numbers", "Model(weights(5, 1), lambda w, x: x @ w)"),
        ("next", "Model(weights(11, 11), lambda w, x: w[x])"),
    ],
)
def test_outputs_of_the_right_shape_pass(tmp_path, name, expression):
    make(tmp_path, SPECS[name], expression)


@pytest.mark.parametrize(
    ("spec", "expression", "message"),
    [
        (
            IMAGES,
            "Model(weights(1, 3), lambda w, x: x @ w)",
            r"given x of shape \(B, 6, 6, 1\) and dtype float32, the model returns an array of "
            r"shape \(B, 6, 6, 3\), but it has to return shape \(B, 3\): one logit for each of 3",
        ),
        (
            TABLE,
            "Model(weights(4, 3), lambda w, x: x @ w)",
            r"given x of shape \(B, 5\) and dtype float32, raised TypeError at mine.py, line 7: ",
        ),
        (TABLE, "Model(weights(5, 3), lambda w, x: [x @ w])", r"returns a list, but it has to"),
        (
            TABLE,
            "Model(weights(5, 3), lambda w, x: (x @ w).argmax(-1, keepdims=True) + jnp.arange(3))",
            r"returns int32 values: return floating-point ones",
        ),
        (NEXT, "Model(weights(11, 3), lambda w, x: w[x])", r"return shape \(B, 7, 11\): one logit"),
        (
            SPECS["numbers"],
            "Model(weights(5, 2), lambda w, x: x @ w)",
            r"shape \(B, 2\), but it has to return shape \(B,\): one number per example",
        ),
        (TABLE, "Model(lambda key: {'w': 1.0}, lambda w, x: x)", r"a float at params\['w'\]"),
        (TABLE, "Model(lambda key: {'w': 'text'}, lambda w, x: x)", r"a str at params\['w'\]"),
        (TABLE, "Model(lambda key: {}, lambda w, x: x[:, :3])", r"the model has no parameters"),
        (
            TABLE,
            "Model(lambda key: jnp.arange(3), lambda w, x: x)",
            r"int32, which has no grad",
        ),
        (
            TABLE,
            "Model(lambda key: 1 / 0, lambda w, x: x)",
            r"init raised ZeroDivisionError at",
        ),
        (
            TABLE,
            "Model(weights(5, 3), lambda w, x: x @ w, lambda w, b: b['x'] @ w)",
            r"the loss of one example is an array of shape \(1, 3\), but it has to be one number",
        ),
        (
            TABLE,
            "Model(weights(5, 3), lambda w, x: x @ w, lambda w, b: b['z'])",
            r"the loss of one example raised KeyError at mine.py, line 7: 'z'",
        ),
        (
            TABLE,
            "Model(weights(5, 3), lambda w, x: x @ w, lambda w, x, y: 0.0)",
            r"the loss has the parameters \(w, x, y\), but it is called as",
        ),
    ],
)
def test_mistakes_are_named_with_what_was_found(tmp_path, spec, expression, message):
    with pytest.raises(FixLossError, match=message) as caught:
        make(tmp_path, spec, expression)
    text = str(caught.value)
    assert text.startswith("[model] module ")
    assert "mine.py:build" in text
    assert len(text) < 400
    assert "optax" not in text
    assert "batch size" not in text


def test_types_of_records():
    types = example_types(NEXT, 4)
    assert types["y"] == types["x"] == jax.ShapeDtypeStruct((4, 7), np.int32)
    assert example_types(SPECS["numbers"], 4)["y"] == jax.ShapeDtypeStruct((4,), np.float32)
