"""Linen modules: told when they train, BatchNorm refused, collections read-only."""

import jax
import numpy as np
import pytest
from model_specs import TABLE, data_of, records
from own_models import job_of

from bevel.errors import FixLossError

pytestmark = pytest.mark.usefixtures("standard_promotion")
CODE = """
from flax import linen as nn

class Classifier(nn.Module):
    classes: int
    batch_norm: str = ""

    @nn.compact
    def __call__(self, x, MODE):
        train = MODE if "MODE" != "deterministic" else not MODE
        if self.batch_norm:
            frozen = self.batch_norm == "frozen"
            x = nn.BatchNorm(use_running_average=frozen or not train)(x)
        h = nn.Dropout(0.5, deterministic=not train)(nn.Dense(8)(x))
        return nn.Dense(self.classes)(h)

def build(data):
    return Classifier(data.classes)

def with_batch_norm(data):
    return Classifier(data.classes, "trained")

def frozen(data):
    return Classifier(data.classes, "frozen")
"""


def job(tmp_path, function="build", mode="train"):
    return job_of(data_of(TABLE), tmp_path / "mine.py", CODE.replace("MODE", mode), function)


@pytest.mark.parametrize("mode", ["train", "deterministic"])
def test_dropout_depends_on_the_key_in_training_only(tmp_path, mode):
    model = job(tmp_path, mode=mode).model
    batch = records(TABLE, 1)
    losses = {float(model.loss_fn(model.init(), batch, jax.random.key(i))[0]) for i in range(3)}
    assert len(losses) > 1
    first, second = (model.predict(model.init(), batch["x"]) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_it_is_trained_and_measured(tmp_path):
    made = job(tmp_path)
    assert 0 <= made.final_metrics(made.fit(progress=False))["test_accuracy"] <= 1


def test_batch_norm_is_refused_with_the_reason(tmp_path):
    with pytest.raises(
        FixLossError,
        match=r"mine.py:with_batch_norm: Cannot update variable.*"
        r"released without noise.*use GroupNorm",
    ):
        _ = job(tmp_path, "with_batch_norm").model


def test_other_collections_are_read_only(tmp_path):
    made = job(tmp_path, "frozen")
    state = made.fit(progress=False)
    before, after = jax.tree.leaves(made.model.model_state), jax.tree.leaves(state.model_state)
    assert len(before) == 2
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a, b)
