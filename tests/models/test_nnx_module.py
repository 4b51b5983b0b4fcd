"""NNX modules: dropout by example, BatchNorm refused, read-only state, measured in eval mode."""

import jax
import numpy as np
import pytest
from model_specs import IMAGES, data_of, records
from own_models import job_of

from bevel.errors import FixLossError

pytestmark = pytest.mark.usefixtures("standard_promotion")
CODE = """
from flax import nnx

class Build(nnx.Module):
    def __init__(self, data, rngs, norm=nnx.GroupNorm):
        self.norm = norm(36, **({"num_groups": 4} if norm is nnx.GroupNorm else {}), rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.out = nnx.Linear(36, data.classes, rngs=rngs)

    def __call__(self, x):
        return self.out(self.dropout(self.norm(x.reshape(len(x), -1))))

def with_batch_norm(data, rngs):
    return Build(data, rngs, nnx.BatchNorm)

def with_frozen_batch_norm(data, rngs):
    model = Build(data, rngs, nnx.BatchNorm)
    model.norm.use_running_average = True
    return model

def with_loss(data, rngs):
    return Build(data, rngs), lambda model, batch: 2.0 * model(batch["x"]).sum()
"""


def test_a_class_is_trained_and_measured(tmp_path):
    job = job_of(data_of(IMAGES), tmp_path / "mine.py", CODE, "Build")
    state = job.fit(progress=False)
    assert job.model.model_state is None
    assert 0 <= job.final_metrics(state)["test_accuracy"] <= 1
    changed = jax.tree.map(lambda a, b: bool((a != b).any()), state.params, job.init())
    assert any(jax.tree.leaves(changed))


def test_dropout_depends_on_the_key_in_training_only(tmp_path):
    model = job_of(data_of(IMAGES), tmp_path / "mine.py", CODE, "Build").model
    batch = records(IMAGES, 1)
    losses = {float(model.loss_fn(model.init(), batch, jax.random.key(i))[0]) for i in range(3)}
    assert len(losses) == 3
    first, second = (model.predict(model.init(), batch["x"]) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_batch_norm_is_refused_with_the_reason(tmp_path):
    with pytest.raises(
        FixLossError,
        match=r"mine.py:with_batch_norm: the loss changes norm/mean.*"
        r"released without noise.*use GroupNorm",
    ):
        _ = job_of(data_of(IMAGES), tmp_path / "mine.py", CODE, "with_batch_norm").model


def test_state_is_read_only(tmp_path):
    job = job_of(data_of(IMAGES), tmp_path / "mine.py", CODE, "with_frozen_batch_norm")
    state = job.fit(folder=tmp_path / "run", progress=False)
    before, after = jax.tree.leaves(job.model.model_state), jax.tree.leaves(state.model_state)
    assert len(before) == 2
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_pair_has_a_loss_of_its_own(tmp_path):
    job = job_of(data_of(IMAGES), tmp_path / "mine.py", CODE, "with_loss")
    loss, _ = job.model.loss_fn(job.init(), records(IMAGES, 1), jax.random.key(0))
    assert loss.shape == ()
