"""Keras models: parameters by path, regularizers in the loss, BatchNormalization refused."""

import jax
import numpy as np
import pytest
from model_specs import TABLE, data_of, records
from own_models import job_of

from bevel.errors import FixLossError

pytestmark = pytest.mark.usefixtures("standard_promotion")
CODE = """
import keras
from keras import layers

def build(data):
    return keras.Sequential([layers.Dropout(0.5), layers.Dense(data.classes, name="out")])

def regularized(data):
    dense = layers.Dense(data.classes, kernel_initializer="ones", kernel_regularizer="l2")
    return keras.Sequential([keras.Input(data.shape), dense])

def with_batch_norm(data):
    return keras.Sequential([layers.BatchNormalization(), layers.Dense(data.classes)])

def frozen(data):
    norm = layers.BatchNormalization(trainable=False)
    return keras.Sequential([norm, layers.Dense(data.classes)])

def another_shape(data):
    return keras.Sequential([keras.Input((4,)), layers.Dense(data.classes)])
"""


def job(tmp_path, function="build"):
    return job_of(data_of(TABLE), tmp_path / "mine.py", CODE, function)


def test_parameters_have_the_names_of_variables(tmp_path):
    made = job(tmp_path)
    assert {path.rpartition("/")[2] for path in made.init()} == {"kernel", "bias"}
    assert 0 <= made.final_metrics(made.fit(progress=False))["test_accuracy"] <= 1


def test_dropout_depends_on_the_key_in_training_only(tmp_path):
    model = job(tmp_path).model
    batch = records(TABLE, 1)
    losses = {float(model.loss_fn(model.init(), batch, jax.random.key(i))[0]) for i in range(3)}
    assert len(losses) > 1
    first, second = (model.predict(model.init(), batch["x"]) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_regularizers_are_part_of_the_loss(tmp_path):
    model = job(tmp_path, "regularized").model
    loss, _ = model.loss_fn(model.init(), records(TABLE, 1), jax.random.key(0))
    np.testing.assert_allclose(loss, np.log(3) + 0.01 * 15, rtol=1e-5)


def test_batch_normalization_is_refused_with_the_reason(tmp_path):
    with pytest.raises(
        FixLossError,
        match=r"with_batch_norm: the layer .* is a BatchNormalization.*"
        r"mixes the examples.*GroupNormalization",
    ):
        _ = job(tmp_path, "with_batch_norm").model


def test_frozen_averages_are_read_only(tmp_path):
    made = job(tmp_path, "frozen")
    state = made.fit(progress=False)
    assert set(made.model.model_state) == set(state.model_state)
    for name, before in made.model.model_state.items():
        np.testing.assert_array_equal(before, state.model_state[name])


def test_a_model_of_another_shape_says_what_it_was_given(tmp_path):
    with pytest.raises(FixLossError, match=r"given x of shape \(B, 5\) and dtype float32, raised"):
        _ = job(tmp_path, "another_shape").model
