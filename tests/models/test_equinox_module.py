"""Equinox modules: one example at a time, a key if they take one, BatchNorm refused."""

import jax
import numpy as np
import pytest
from model_specs import TABLE, data_of, records
from own_models import job_of

from bevel.errors import FixLossError

pytestmark = pytest.mark.usefixtures("standard_promotion")
CODE = """
import equinox as eqx

def build(data, key):
    assert data.shape == (5,)
    return eqx.nn.Sequential([eqx.nn.Dropout(0.5), eqx.nn.Linear(5, data.classes, key=key)])

class Plain(eqx.Module):
    out: eqx.nn.Linear

    def __init__(self, data, key):
        self.out = eqx.nn.Linear(5, data.classes, key=key)

    def __call__(self, x):
        assert x.shape == (5,)
        return self.out(x)

def with_batch_norm(data, key):
    norm = eqx.nn.BatchNorm(5, "batch", mode="batch")
    return eqx.nn.Sequential([norm, eqx.nn.Linear(5, data.classes, key=key)])
"""


def test_dropout_depends_on_the_key_in_training_only(tmp_path):
    model = job_of(data_of(TABLE), tmp_path / "mine.py", CODE).model
    batch = records(TABLE, 1)
    losses = {float(model.loss_fn(model.init(), batch, jax.random.key(i))[0]) for i in range(3)}
    assert len(losses) > 1
    first, second = (model.predict(model.init(), batch["x"]) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_a_module_without_a_key_is_trained_and_measured(tmp_path):
    job = job_of(data_of(TABLE), tmp_path / "mine.py", CODE, "Plain")
    assert 0 <= job.final_metrics(job.fit(progress=False))["test_accuracy"] <= 1


def test_batch_norm_is_refused_with_the_reason(tmp_path):
    with pytest.raises(
        FixLossError,
        match=r"with_batch_norm: the model has a BatchNorm in train.*"
        r"released without noise. Use eqx.nn.GroupNorm",
    ):
        _ = job_of(data_of(TABLE), tmp_path / "mine.py", CODE, "with_batch_norm").model
