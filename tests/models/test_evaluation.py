"""Metrics of chunks are those of the whole test set."""

import jax
import numpy as np
import pytest
from model_specs import SPECS, data_of

from bevel import sharding
from bevel.models import Evaluation, ModelTable, build, evaluation
from bevel.models.evaluation import described


@pytest.mark.parametrize("name", ["table", "numbers", "next"])
def test_chunks_give_the_metrics_of_the_whole_test_set(name, monkeypatch):
    spec = SPECS[name]
    data = data_of(spec)
    model = build(ModelTable("linear"), spec)
    params = jax.tree.map(lambda x: x + 0.1 * np.arange(x.size).reshape(x.shape), model.init())
    params = jax.tree.map(lambda x: np.asarray(x, np.float32), params)
    mesh = sharding.make_mesh("data=4,model=2")
    whole = Evaluation(model.predict, spec, data.test, mesh)(params)
    monkeypatch.setattr(evaluation, "_MOST_ROWS", 4)  # 11 = 4 + 4 + 3
    chunked = Evaluation(model.predict, spec, data.test, mesh)
    assert chunked._rows == 4
    assert chunked(params) == pytest.approx(whole, rel=1e-5)
    outputs = np.asarray(model.predict(params, data.test.columns["x"]))
    y = data.test.columns["y"]
    if name == "table":
        assert whole["test_accuracy"] == pytest.approx((outputs.argmax(-1) == y).mean())
    if name == "numbers":
        assert whole["test_rmse"] == pytest.approx(np.sqrt(np.square(outputs - y).mean()), rel=1e-5)


def test_large_examples_are_read_in_smaller_chunks(monkeypatch):
    spec = SPECS["next"]
    monkeypatch.setattr(evaluation, "_MOST_NUMBERS", 2 * 7 * 11)
    made = Evaluation(lambda params, x: x, spec, data_of(spec).test, sharding.make_mesh("data=8"))
    assert made._rows == 2


def test_metrics_in_words():
    assert described({"test_accuracy": 0.93056}) == "test accuracy 93.06%"
    words = described({"test_loss": 2.0, "test_perplexity": 7.38906})
    assert words == "test loss 2, test perplexity 7.389"
