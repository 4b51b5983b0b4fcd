"""Private `fit` and `train_step`, against slow loops, and what they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from framework_checks import assert_close, slow_clipped_sum
from keras_models import (
    KINDS,
    Subclassed,
    compile_model,
    data_for,
    dense_model,
    keras,
    layers,
    model_of,
    private,
    slow_gradient,
    state_of,
)

from bevel.errors import FixArgumentsError, FixLossError, StopRunError
from bevel.training.loop import loss_key_data

CNN, _, TWO = KINDS


def loss_key(model, step=0):
    """The key of the loss at a step, from which those of examples are folded."""
    seed = model.fit.__self__.plan.secrets.sampling_seed
    key = jax.random.wrap_key_data(jnp.asarray(loss_key_data(seed)), impl="threefry2x32")
    return jax.random.fold_in(key, step)


def values(variables):
    return [np.array(v.value) for v in variables]


@pytest.mark.fast
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_of_fit_moves_by_the_mean_of_clipped_gradients(kind):
    """With all examples in a batch, tiny noise, and SGD at learning rate 1."""
    model = private(model_of(kind))
    x, y = data_for(kind)
    before, others = values(model.trainable_variables), values(model.non_trainable_variables)
    order = model.fit.__self__.plan.batch(0, len(y))  # each row of a batch has its own dropout
    ordered = jax.tree.map(lambda column: column[order], {"x": x, "y": y})
    slow = slow_clipped_sum(slow_gradient(model), ordered, loss_key(model), 0.5)
    model.fit(x, y, verbose=0)
    moved = [b - v for b, v in zip(before, values(model.trainable_variables), strict=True)]
    assert_close(moved, [np.asarray(g) / 0.5 / 8 for g in slow])
    for old, new in zip(others, values(model.non_trainable_variables), strict=True):
        np.testing.assert_array_equal(old, new)


def test_train_step_is_the_step_of_fit():
    (by_fit, (x, y)), (by_hand, _) = dense_model(), dense_model()
    private(by_fit), private(by_hand)
    by_fit.fit(x, y, verbose=0)
    state = state_of(by_hand)
    logs, state = by_hand.train_step(state, (x, y))
    assert_close(state[0], values(by_fit.trainable_variables), 1e-5)
    assert float(logs["loss"]) == pytest.approx(by_fit.history.history["loss"][0], rel=1e-5)
    assert by_hand.fit.__self__.steps_taken == 1
    with pytest.raises(FixArgumentsError, match=r"was traced, for example by jax\.jit"):
        jax.jit(by_hand.train_step)(state, (x, y))


def test_train_step_has_the_optimizer_that_the_model_was_compiled_with_last():
    model, data = dense_model()
    private(model)
    before = state_of(model)
    _, moved = model.train_step(before, data)
    compile_model(model, learning_rate=0.0)
    _, still = model.train_step(state_of(model), data)
    assert not np.allclose(before[0][0], moved[0][0])
    np.testing.assert_array_equal(before[0][0], still[0][0])


@pytest.mark.fast
@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, 1.5 / 8),
        ({"rescale_to_unit_norm": False}, 1.5 * 0.5 / 8),
        ({"batch_size": 4, "gradient_accumulation_steps": 2}, 1.5 / 8),
        ({"batch_size": 4, "train_size": 16}, 1.5 / 4),
    ],
)
def test_the_noise_is_that_of_one_effective_batch(changed, expected):
    """The gradients are zero, so a step of SGD at learning rate 1 is the noise."""
    model = keras.Sequential([keras.Input((100,)), layers.Dense(200, use_bias=False)])
    accumulates = changed.get("gradient_accumulation_steps")
    model.compile(keras.optimizers.SGD(1.0, gradient_accumulation_steps=accumulates), "mse")
    private(model, noise_multiplier=1.5, **changed)
    before = np.array(model.trainable_variables[0].value)
    size = changed.get("train_size", 8)
    model.fit(np.zeros((size, 100)), np.zeros((size, 200)), steps_per_epoch=1, verbose=0)
    noise = np.array(model.trainable_variables[0].value) - before
    assert noise.std() == pytest.approx(expected, rel=0.03)
    assert abs(noise.mean()) < 4 * expected / np.sqrt(noise.size)
    assert int(model.optimizer.iterations) == 1


def test_every_step_has_its_own_noise():
    model, data = dense_model()
    private(model, noise_multiplier=1e3)
    moved = [values(model.trainable_variables)[0]]
    for _ in range(3):
        model.fit(*data, verbose=0)
        moved.append(values(model.trainable_variables)[0])
        compile_model(model)  # with a new optimizer, whose iterations start from 0
    noise = np.diff(moved, axis=0)
    assert (np.abs(noise[0] - noise[1]) > 1).any() and (np.abs(noise[1] - noise[2]) > 1).any()


def test_the_step_is_compiled_once():
    model, data = dense_model()
    private(model, train_steps=9, poisson_sampling_in_fit=False)
    for _ in range(2):
        model.fit(*data, epochs=3, validation_data=data, verbose=0)
    assert model.fit.__self__._compiled_in_place._cache_size() == 1


def test_one_example_moves_the_weights_by_at_most_the_clip_norm():
    """Of neighbours under add-or-remove, however large the example is."""
    moved = []
    for rows in (slice(8), slice(7)):
        model, (x, y) = dense_model()
        x[7] *= 1e6
        y[7] = np.argmin(model(x)[7])
        private(model, rescale_to_unit_norm=False)
        batch = (x[rows], y[rows])
        _, state = model.train_step(state_of(model), batch)
        moved.append(np.concatenate([np.ravel(v) for v in state[0]]))
    distance = np.linalg.norm(moved[0] - moved[1])
    assert 0.4 / 8 < distance <= 0.5 / 8 * (1 + 1e-3)


def test_runs_are_reproducible_by_seed_and_secret_without():
    def weights(seed):
        model, data = dense_model()
        private(model, noise_multiplier=1.0, batch_size=4, seed=seed).fit(*data, verbose=0)
        return np.concatenate([v.ravel() for v in values(model.trainable_variables)])

    first = weights(5)
    np.testing.assert_array_equal(first, weights(5))
    assert not np.allclose(first, weights(6))
    assert not np.allclose(weights(None), weights(None))


def test_poisson_batches_vary_and_fixed_ones_do_not():
    for poisson in (True, False):
        changed = {"batch_size": 8, "train_size": 32, "poisson_sampling_in_fit": poisson}
        model = private(model_of(TWO), train_steps=30, **changed)
        training = model.fit.__self__
        seed = training.plan.secrets.sampling_seed
        drawn = [len(training.plan.batch_selection_strategy.batch(k, 32, seed)) for k in range(30)]
        assert (len(set(drawn)) > 1) == poisson


# Of NumPy 2, about Keras's variables, when Keras writes weights.
saves_weights = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


@saves_weights
def test_fit_has_validation_callbacks_metrics_and_a_history(tmp_path):
    model = model_of(TWO, compiled=False)
    compile_model(model, 0.1, metrics=["accuracy"])
    private(model, batch_size=4, train_steps=20)
    x, y = data_for(TWO)
    seen = []
    callbacks = [
        keras.callbacks.ModelCheckpoint(tmp_path / "best.weights.h5", save_weights_only=True),
        keras.callbacks.EarlyStopping("val_loss", min_delta=10.0, patience=1),
        keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(logs)),
    ]
    history = model.fit(x, y, epochs=6, validation_data=(x, y), callbacks=callbacks, verbose=0)
    names = {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert history.history.keys() == names and all(map(np.isfinite, history.history["loss"]))
    assert len(history.history["loss"]) == 2  # stopped early
    assert len(seen) == model.fit.__self__.steps_taken == int(model.optimizer.iterations) == 4
    other = Subclassed()
    other(x)
    other.load_weights(tmp_path / "best.weights.h5")
    np.testing.assert_allclose(other(x), model(x), rtol=1e-5)


def test_a_model_that_is_not_built_and_a_validation_split():
    model = keras.Sequential([layers.Dense(4, "relu"), layers.Dense(3)])
    compile_model(model, steps_per_execution=2)
    private(model, batch_size=2, train_steps=4)
    x, y = np.ones((10, 4)), np.zeros(10, "int64")
    history = model.fit(x, y, validation_split=0.2, verbose=0)
    assert "val_loss" in history.history and model.fit.__self__.steps_taken == 4
    assert model.predict(x, verbose=0).shape == (10, 3)


def test_mixed_precision_trains_float32_weights():
    before = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
    try:
        model = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    finally:
        keras.mixed_precision.set_dtype_policy(before)
    compile_model(model)
    private(model)
    model.fit(np.ones((8, 4), "float32"), np.zeros(8, "int32"), verbose=0)
    assert model.layers[0].compute_dtype == "bfloat16"
    assert {v.dtype for v in model.trainable_variables} == {"float32"}
    assert np.isfinite(model.layers[0].kernel).all()


def test_more_steps_than_the_noise_is_calibrated_for_are_refused():
    model, data = dense_model()
    private(model, train_steps=3)
    with pytest.raises(RuntimeError, match=r"4 steps in 4 epochs, but only 3 of.*Pass epochs=3"):
        model.fit(*data, epochs=4)
    model.fit(*data, epochs=2, verbose=0)
    with pytest.raises(StopRunError, match="Pass epochs=5, or"):
        model.fit(*data, initial_epoch=4, epochs=6)
    with pytest.raises(StopRunError, match="Pass epochs=1, steps_per_epoch=1"):
        model.fit(*data, steps_per_epoch=7)
    compile_model(model)  # a new optimizer does not forget the steps
    model.fit(*data, verbose=0)
    with pytest.raises(ValueError, match=r"only 0 of the 3 steps.*Make a new model"):
        model.fit(*data)
    with pytest.raises(StopRunError, match="took all 3 steps"):
        model.train_step(state_of(model), data)


@saves_weights
def test_steps_before_a_model_was_saved_count(tmp_path):
    model, data = dense_model()
    private(model, train_steps=3).fit(*data, epochs=2, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(data[0]), model(data[0]), rtol=1e-6)
    with pytest.raises(StopRunError, match="only 1 of the 3 steps"):
        private(loaded, train_steps=3).fit(*data, epochs=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 32}, "batch_size=32, but .* batch_size=8.*Leave it out"),
        ({"shuffle": False}, "shuffle=False: epsilon relies on random batches"),
        ({"class_weight": {0: 1.0}}, "pass the weight of each example as sample_weight"),
        ({"y": None, "sample_weight": np.ones(5)}, "all first dimensions must be equal"),
    ],
)
def test_first_day_mistakes_are_refused(options, message):
    x, y = data_for(TWO)
    with pytest.raises(FixArgumentsError, match=message):
        private(model_of(TWO)).fit(**{"x": x, "y": y} | options)


def test_a_model_that_is_not_compiled_is_refused():
    with pytest.raises(FixArgumentsError, match=r"call model.compile"):
        private(model_of(TWO, compiled=False)).fit(*data_for(TWO))


def test_a_model_without_trainable_variables_is_refused():
    model, data = dense_model()
    model.trainable = False
    compile_model(model)
    with pytest.raises(FixArgumentsError, match="no trainable variables: set trainable = True"):
        private(model).fit(*data, verbose=0)


def test_other_ways_to_train_are_refused():
    model, data = private(model_of(TWO)), data_for(TWO)
    with pytest.raises(FixArgumentsError, match=r"train_on_batch.*Use fit"):
        model.train_on_batch(*data)
    with pytest.raises(FixArgumentsError, match="call fit of the private model"):
        keras.Model.fit(model, *data, verbose=0)


class Centered(layers.Layer):
    def call(self, x):
        return x - keras.ops.mean(x, axis=0)


def test_a_layer_that_mixes_examples_is_refused_before_a_step_is_taken():
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3), Centered()])
    compile_model(model)
    private(model)
    with pytest.raises(
        FixLossError, match=r"the loss couples examples.*Keras models have no such option"
    ):
        model.fit(np.ones((8, 4), "float32"), np.zeros(8, "int32"), verbose=0)
    assert model.fit.__self__.steps_taken == 0
