"""Losses and metrics of each target, against plain NumPy."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from model_specs import NEXT, SPECS, TABLE, records

from bevel.datasets import DataSpec
from bevel.errors import FixDataError
from bevel.models.objective import loss_of, metrics_of, output_shape, output_size, totals_of


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def outputs_for(spec, size):
    rng = np.random.default_rng(5)
    return rng.normal(size=output_shape(spec, size)).astype(np.float32)


def test_classes():
    y, logits = records(TABLE, 6)["y"], outputs_for(TABLE, 6)
    loss, aux = loss_of(TABLE, jnp.asarray(logits), jnp.asarray(y))
    np.testing.assert_allclose(loss, -log_softmax(logits)[np.arange(6), y].mean(), rtol=1e-5)
    np.testing.assert_allclose(aux["accuracy"], (logits.argmax(-1) == y).mean(), rtol=1e-6)


@pytest.mark.parametrize("extra", [(), (1,)])
def test_numbers_may_have_a_last_axis_of_size_one(extra):
    spec = SPECS["numbers"]
    y, outputs = records(spec, 6)["y"], outputs_for(spec, 6)
    loss, aux = loss_of(spec, jnp.asarray(outputs.reshape(6, *extra)), jnp.asarray(y))
    np.testing.assert_allclose(loss, np.square(outputs - y).mean(), rtol=1e-5)
    assert aux == {}


def test_next_tokens_are_averaged_over_the_positions_of_each_example():
    y, logits = records(NEXT, 4)["y"], outputs_for(NEXT, 4)
    y[3] = -1  # nothing to predict
    losses = -np.take_along_axis(log_softmax(logits), np.maximum(y, 0)[..., None], -1)[..., 0]
    means = [losses[i][y[i] >= 0].mean() for i in range(3)] + [0.0]
    loss, _ = loss_of(NEXT, jnp.asarray(logits), jnp.asarray(y))
    np.testing.assert_allclose(loss, np.mean(means), rtol=1e-5)


@pytest.mark.parametrize("name", SPECS)
def test_totals_leave_out_padding_rows(name):
    spec = SPECS[name]
    y, outputs = records(spec, 6)["y"], outputs_for(spec, 6)
    padding = np.array([False, False, True, False, True, False])
    all_rows = totals_of(spec, *map(jnp.asarray, (outputs, y, padding)))
    kept = totals_of(spec, *map(jnp.asarray, (outputs[~padding], y[~padding], padding[~padding])))
    np.testing.assert_allclose(all_rows["sum"], kept["sum"], rtol=1e-6)
    expected = (y[~padding] >= 0).sum() if spec is NEXT else 4
    assert int(all_rows["count"]) == int(kept["count"]) == expected


def test_metrics_by_target():
    assert metrics_of(TABLE, {"sum": 3.0, "count": 4.0}) == {"test_accuracy": 0.75}
    assert metrics_of(SPECS["numbers"], {"sum": 1.0, "count": 4.0}) == {"test_rmse": 0.5}
    metrics = metrics_of(NEXT, {"sum": 8.0, "count": 4.0})
    assert metrics == {"test_loss": 2.0, "test_perplexity": pytest.approx(np.exp(2))}


def test_the_error_of_numbers_is_in_their_own_unit():
    spec = dataclasses.replace(SPECS["numbers"], target_range=(10.0, 30.0))
    assert metrics_of(spec, {"sum": 1.0, "count": 4.0}) == {"test_rmse": 5.0}


def test_data_that_does_not_say_how_many_classes_there_are():
    with pytest.raises(FixDataError, match=r"target of the data is a class.*how many classes"):
        output_size(DataSpec("table", (3,)))
    with pytest.raises(FixDataError, match="how many tokens"):
        output_size(DataSpec("tokens", (3,), target="next token"))
