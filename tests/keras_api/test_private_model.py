"""`make_private` binds private methods onto a model, once."""

import warnings

import pytest
from keras_models import KINDS, config, dense_model, keras, layers, model_of, private

import bevel as jax_privacy
from bevel.errors import FixArgumentsError, FixLossError
from bevel.keras_api import get_noise_multiplier, make_private


def test_the_same_model_comes_back_with_its_noise_multiplier():
    model = model_of(KINDS[0])
    assert private(model, noise_multiplier=2.5) is model
    assert get_noise_multiplier(model) == model.get_noise_multiplier() == 2.5
    assert jax_privacy.keras_api.make_private is make_private


def test_the_noise_is_calibrated_if_it_is_not_given():
    model = model_of(KINDS[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_private(model, config(noise_multiplier=None, seed=None))
    wanted = config(noise_multiplier=None).update_with_calibrated_noise_multiplier()
    assert get_noise_multiplier(model) == wanted.noise_multiplier


def test_warnings_point_at_the_line_of_the_caller():
    with pytest.warns(UserWarning) as caught:
        make_private(model_of(KINDS[0]), config())
    assert {record.filename for record in caught} == {__file__}
    assert len(caught) == 2  # the seed, and too little noise


@pytest.mark.parametrize(
    ("model", "params", "message"),
    [
        (None, config(), "model is a NoneType"),
        (keras.Sequential(), {"epsilon": 1}, "params is a dict: pass DPKerasConfig"),
    ],
)
def test_wrong_arguments_are_refused(model, params, message):
    with pytest.raises(FixArgumentsError, match=message):
        make_private(model, params)


def test_another_backend_is_refused(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    with pytest.raises(FixArgumentsError, match="the torch backend"):
        make_private(model_of(KINDS[0]), config())


def test_batch_normalization_is_refused():
    model = keras.Sequential([keras.Input((4,)), layers.BatchNormalization(name="norm")])
    with pytest.raises(FixLossError, match="'norm' is a BatchNormalization"):
        make_private(model, config())


def test_a_model_that_is_not_private_has_no_noise():
    with pytest.raises(ValueError, match="call make_private"):
        get_noise_multiplier(model_of(KINDS[0]))


def test_steps_are_not_forgotten_when_a_cell_is_run_again():
    model, data = dense_model()
    private(model, train_steps=4)
    private(model, train_steps=5)  # it took no step yet
    model.fit(*data, epochs=3, verbose=0)
    private(model, train_steps=5)
    assert model.fit.__self__.steps_taken == 3
    with pytest.raises(FixArgumentsError, match="took 3 steps with another config"):
        private(model, train_steps=100)
