"""Small Keras models, their data, and configs."""

import warnings

import jax
import jax.numpy as jnp
import keras
import numpy as np
from keras import layers

from bevel.keras_api import DPKerasConfig, make_private

KINDS = ("sequential CNN", "functional transformer", "subclassed with a dict")


class Subclassed(keras.Model):
    """Reads a dict of two arrays, and has a regularizer, a loss of its own and frozen variables."""

    def __init__(self):
        super().__init__()
        self.left = layers.Dense(4, kernel_regularizer="l2")
        self.right = layers.Dense(4)
        self.frozen = layers.Dense(4, trainable=False)
        self.dropout = layers.Dropout(0.3)
        self.head = layers.Dense(3)

    def call(self, inputs, training=False):
        x = self.left(inputs["a"]) + self.frozen(self.right(inputs["b"]))
        self.add_loss(0.1 * keras.ops.mean(x**2))
        return self.head(self.dropout(keras.ops.tanh(x), training=training))


def model_of(kind, seed=0, compiled=True, dtype=None):
    """A model that is built, with dropout, and compiled with SGD and a loss from logits."""
    keras.utils.set_random_seed(seed)
    keras.backend.clear_session()
    if kind == KINDS[0]:
        parts = [
            keras.Input((6, 6, 1)),
            layers.Conv2D(4, 3, dtype=dtype),
            layers.GroupNormalization(2, dtype=dtype),
            layers.ReLU(dtype=dtype),
            layers.Dropout(0.3, dtype=dtype),
            layers.Flatten(dtype=dtype),
            layers.Dense(3, dtype=dtype),
        ]
        model = keras.Sequential(parts)
    elif kind == KINDS[1]:
        tokens = keras.Input((5,), dtype="int32")
        x = layers.Embedding(7, 8)(tokens)
        x = x + layers.MultiHeadAttention(2, 4, dropout=0.3)(layers.LayerNormalization()(x), x)
        model = keras.Model(tokens, layers.Dense(3)(layers.Flatten()(x)))
    else:
        model = Subclassed()
        model({"a": np.zeros((1, 4)), "b": np.zeros((1, 2))})
    if compiled:
        compile_model(model)
    return model


def compile_model(model, learning_rate=1.0, **options):
    optimizer = keras.optimizers.SGD(learning_rate)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, **options)


def dense_model(seed=0):
    """The model that compiles fastest, and its data."""
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    compile_model(model)
    rng = np.random.default_rng(0)
    return model, (rng.normal(size=(8, 4)).astype("float32"), np.arange(8, dtype="int32") % 3)


def data_for(kind, size=8, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=size).astype("int32")
    if kind == KINDS[0]:
        return rng.normal(size=(size, 6, 6, 1)).astype("float32"), y
    if kind == KINDS[1]:
        return rng.integers(7, size=(size, 5)).astype("int32"), y
    columns = {
        name: rng.normal(size=(size, n)).astype("float32") for name, n in (("a", 4), ("b", 2))
    }
    return columns, y


def config(**changed):
    """Of 8 examples, all of them in a batch, and tiny noise."""
    fields = {"epsilon": 3.0, "delta": 1e-2, "clipping_norm": 0.5, "batch_size": 8, "seed": 0}
    fields |= {"gradient_accumulation_steps": 1, "train_steps": 4, "train_size": 8}
    fields |= {"noise_multiplier": 1e-6, "poisson_sampling_in_fit": True}
    return DPKerasConfig(**fields | changed)


def private(model, **changed):
    """A private model, without the warnings that its seed and its noise give."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make_private(model, config(**changed))


def state_of(model):
    """The state that `train_step` takes."""
    model.optimizer.build(model.trainable_variables)
    groups = (
        model.trainable_variables,
        model.non_trainable_variables,
        model.optimizer.variables,
        model.metrics_variables,
    )
    return tuple([jnp.array(v.value) for v in group] for group in groups)


def slow_gradient(model):
    """`grad(example, key)` of the trainable variables, with Keras's own stateless call."""
    others = model.non_trainable_variables

    @jax.jit
    def grad(example, key):
        def loss(params):
            values = [
                jax.random.bits(jax.random.fold_in(key, i), (2,), jnp.uint32)
                if v.name == "seed_generator_state"
                else v.value
                for i, v in enumerate(others)
            ]
            logits, _, extra = model.stateless_call(
                params, values, example["x"], training=True, return_losses=True
            )
            of_data = keras.losses.sparse_categorical_crossentropy(
                example["y"], logits, from_logits=True
            )
            return jnp.sum(of_data) + sum(extra)

        return jax.grad(loss)([v.value for v in model.trainable_variables])

    return grad
