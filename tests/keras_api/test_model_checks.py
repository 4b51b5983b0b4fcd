"""Models that cannot be trained privately are refused, with the way out."""

import pytest
from keras_models import KINDS, compile_model, keras, layers, model_of

from bevel.errors import FixArgumentsError, FixLossError
from bevel.keras_api.model_checks import check_compiled, check_layers, check_model, warn_of_monitors


def test_ordinary_models_are_accepted():
    for kind in KINDS:
        model = model_of(kind)
        check_model(model)
        check_compiled(model, 1)


class Block(layers.Layer):
    def __init__(self):
        super().__init__()
        self.inner = layers.BatchNormalization(name="deep_norm")

    def call(self, x, training=False):
        return self.inner(x, training=training)


def test_batch_normalization_is_refused_by_name_at_any_depth():
    nested = keras.Sequential([keras.Input((4,)), Block(), layers.Dense(2)])
    model = keras.Sequential([nested, layers.Dense(2)])
    message = "'deep_norm' is a BatchNormalization.*GroupNormalization or LayerNormalization"
    with pytest.raises(FixLossError, match=message):
        check_model(model)
    nested.layers[0].inner.trainable = False
    check_layers(model)


def test_what_is_not_a_model_is_refused():
    with pytest.raises(FixArgumentsError, match=r"model is a Dense: pass a keras.Model"):
        check_model(layers.Dense(2))


class OwnStep(keras.Model):
    def train_step(self, state, data):
        return {}, state


def test_a_train_step_of_its_own_is_refused():
    with pytest.raises(FixArgumentsError, match=r"OwnStep has a train_step.*compute_loss"):
        check_model(OwnStep())


def test_a_model_has_to_be_compiled():
    with pytest.raises(FixArgumentsError, match=r"call model.compile"):
        check_compiled(model_of(KINDS[0], compiled=False), 1)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()),
        lambda: keras.optimizers.SGD(loss_scale_factor=8.0),
    ],
)
def test_loss_scaling_is_refused(optimizer):
    model = model_of(KINDS[0])
    model.compile(optimizer(), "mse")
    with pytest.raises(FixArgumentsError, match=r"scales the loss.*mixed_bfloat16"):
        check_compiled(model, 1)


def test_accumulation_has_to_agree_with_the_config():
    model = model_of(KINDS[0])
    model.compile(keras.optimizers.SGD(gradient_accumulation_steps=4), "mse")
    check_compiled(model, 4)
    with pytest.raises(FixArgumentsError, match=r"gradient_accumulation_steps=4.* has 2"):
        check_compiled(model, 2)


def test_a_distribution_is_refused(monkeypatch):
    monkeypatch.setattr(keras.distribution, "distribution", lambda: "data parallel")
    model = model_of(KINDS[0], compiled=False)
    compile_model(model)
    with pytest.raises(FixArgumentsError, match=r"bevel.Trainer with a mesh"):
        check_compiled(model, 1)


def test_callbacks_that_act_on_training_metrics_warn():
    stop = keras.callbacks.EarlyStopping
    for quiet in (None, [], stop("val_loss"), [keras.callbacks.TerminateOnNaN(), stop("val_auc")]):
        warn_of_monitors(quiet)
    listed = keras.callbacks.CallbackList([stop("loss")])
    for callbacks in (stop("loss"), [stop("loss")], listed):
        with pytest.warns(UserWarning, match=r"EarlyStopping monitors 'loss'.*'val_loss'"):
            warn_of_monitors(callbacks)
