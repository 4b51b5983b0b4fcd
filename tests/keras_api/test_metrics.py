"""Metrics of padded batches, against Keras's own on the rows without padding."""

import jax
import jax.numpy as jnp
import numpy as np
from keras_models import keras, layers

from bevel.keras_api.metrics import updated_metrics


def test_padding_is_left_out_and_the_rest_is_as_in_keras():
    shared = keras.Input((4,))
    outputs = {"a": layers.Dense(1, "sigmoid")(shared), "b": layers.Dense(2)(shared)}
    model = keras.Model(shared, outputs)
    metrics = {"a": [keras.metrics.AUC(name="auc"), "mae"], "b": "mse"}
    model.compile("sgd", {"a": "binary_crossentropy", "b": "mse"}, metrics=metrics)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 4)).astype("float32")
    y = {
        "a": rng.integers(2, size=(6, 1)).astype("int32"),
        "b": rng.normal(size=(6, 2)).astype("float32"),
    }
    real = np.array([0, 1, 3, 5])
    rows = (x[real], jax.tree.map(lambda v: v[real], y))
    expected = model.evaluate(*rows, verbose=0, return_dict=True)

    y_pred = model(x)
    losses = [
        model.compute_loss(
            x[i : i + 1], *(jax.tree.map(lambda v, i=i: v[i : i + 1], t) for t in (y, y_pred))
        )
        for i in range(6)
    ]
    model.reset_metrics()
    values = [v.value for v in model.metrics_variables]
    per_row = jax.tree.map(lambda v: v[:, None], y_pred)
    is_padding = ~np.isin(np.arange(6), real)
    arguments = (values, [], {"x": x, "y": y}, per_row, jnp.stack(losses), is_padding)
    logs, after = jax.jit(lambda *a: updated_metrics(model, *a))(*arguments)
    assert logs.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(logs[name], value, rtol=1e-5, err_msg=name)
    assert [v.dtype for v in after] == [v.dtype for v in values]
    assert all(
        np.array_equal(v.value, old) for v, old in zip(model.metrics_variables, values, strict=True)
    )
