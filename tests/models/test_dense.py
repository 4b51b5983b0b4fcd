"""Dense models by hand, and their default sizes."""

import jax
import numpy as np
import pytest
from model_specs import TABLE, records

from bevel.datasets import DataSpec
from bevel.models.dense import linear, mlp


def test_one_hidden_layer_by_hand():
    model = mlp(TABLE, (4,))
    params = model.init(jax.random.key(0))
    params["out"] = {"w": np.ones((4, 3), np.float32), "b": np.float32([1, 2, 3])}
    x = records(TABLE, 3)["x"]
    hidden = np.tanh(x @ np.asarray(params["dense"][0]["w"]))
    expected = hidden.sum(1, keepdims=True) + np.float32([[1, 2, 3]])
    np.testing.assert_allclose(model.predict(params, x), expected, rtol=1e-4)


@pytest.mark.parametrize(("features", "units"), [(3, 16), (13, 32), (30, 64), (500, 128)])
def test_units_follow_from_the_number_of_inputs(features, units):
    params = mlp(DataSpec("table", (features,), classes=2), None).init(jax.random.key(0))
    assert params["dense"][0]["w"].shape == (features, units)


def test_a_linear_model_has_no_hidden_layer():
    assert linear(TABLE).init(jax.random.key(0))["dense"] == []
