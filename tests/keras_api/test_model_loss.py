"""The loss of a Keras model, against Keras's own stateless call of single examples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from framework_checks import assert_close, slow_clipped_sum
from keras_models import KINDS, compile_model, data_for, keras, layers, model_of, slow_gradient

import bevel
from bevel.errors import FixLossError
from bevel.keras_api.model_loss import model_loss, model_state_of

KEY = jax.random.key(7)


def parts(model):
    params = [v.value for v in model.trainable_variables]
    return params, model_state_of(model, [v.value for v in model.non_trainable_variables])


def clipped(model, batch, key=KEY, **options):
    options = {"l2_clip_norm": 0.5, "batch_argnums": 2, "prng_argnum": 3} | options
    grad_fn = bevel.clipped_grad(model_loss(model), has_aux=True, **options)
    return grad_fn(*parts(model), batch, key)


@pytest.mark.fast
@pytest.mark.parametrize("kind", KINDS)
def test_the_clipped_sum_is_that_of_single_examples(kind):
    model = model_of(kind)
    batch = dict(zip("xy", data_for(kind), strict=True))
    sums, _ = clipped(model, batch)
    assert_close(sums, slow_clipped_sum(slow_gradient(model), batch, KEY, 0.5))


def test_every_example_and_key_has_its_own_dropout_mask():
    ones = np.ones((4, 64), "float32")
    model = keras.Sequential([keras.Input((64,)), layers.Dropout(0.5), Scale()])
    compile_model(model)
    batch = {"x": ones, "y": np.zeros(4, "int32")}
    masks = clipped(model, batch)[1].aux["y_pred"][:, 0] != 0
    assert 0.2 < masks.mean() < 0.8
    assert len({row.tobytes() for row in np.asarray(masks)}) == 4
    others = clipped(model, batch, jax.random.key(8))[1].aux["y_pred"][:, 0] != 0
    assert (masks != others).any(axis=1).all()


class Scale(layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer="ones")

    def call(self, x):
        return x * self.scale


def test_sample_weights_scale_the_loss_before_clipping():
    model = model_of(KINDS[0])
    x, y = data_for(KINDS[0])
    weights = np.array([0, 1, 2, 0, 0, 0, 0, 0], "float32")
    options = {"l2_clip_norm": 1e3, "return_values": True}
    _, plain = clipped(model, {"x": x, "y": y}, **options)
    _, weighted = clipped(model, {"x": x, "y": y, "sample_weight": weights}, **options)
    np.testing.assert_allclose(weighted.values, weights * plain.values, rtol=1e-5)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "bfloat16"])
def test_sums_are_float32_in_mixed_precision(policy):
    model = model_of(KINDS[0], dtype=policy)
    x, y = data_for(KINDS[0])
    sums, aux = clipped(model, {"x": x, "y": y})
    assert {g.dtype for g in sums} == {jnp.dtype("float32")}
    assert aux.aux["y_pred"].dtype == jnp.bfloat16


class Counting(layers.Layer):
    """Keeps a mean of its inputs, as batch statistics do."""

    def __init__(self, of_data):
        super().__init__(name="counting")
        self.of_data = of_data

    def build(self, shape):
        self.mean = self.add_weight(shape=(), initializer="zeros", trainable=False, name="mean")

    def call(self, x):
        self.mean.assign(self.mean + (keras.ops.mean(x) if self.of_data else 1.0))
        return x


@pytest.mark.parametrize("of_data", [True, False])
def test_state_that_changes_with_the_data_is_refused(of_data):
    model = keras.Sequential([keras.Input((4,)), Counting(of_data), layers.Dense(3)])
    compile_model(model)
    batch = {"x": np.ones((2, 4), "float32"), "y": np.zeros(2, "int32")}
    if not of_data:
        clipped(model, batch)
        assert float(model.layers[0].mean) == 0
        return
    with pytest.raises(FixLossError, match=r"changes .*counting/mean.*released without noise"):
        clipped(model, batch)
