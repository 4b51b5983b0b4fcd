"""Train a transformer of Keras privately, in bfloat16, with batches taken in two parts.

The lines that are marked are those of privacy.

python examples/keras_transformer.py
"""

import os

os.environ["KERAS_BACKEND"] = "jax"

import keras
from keras import layers
from sklearn.datasets import load_digits

from bevel.keras_api import DPKerasConfig, make_private  # +

digits = load_digits()
images, labels = digits.images.astype("float32") / 16, digits.target.astype("int32")
train, test = (images[:1024], labels[:1024]), (images[1024:], labels[1024:])

keras.utils.set_random_seed(0)
keras.mixed_precision.set_dtype_policy("mixed_bfloat16")  # clipped sums and noise are float32


class Positions(layers.Layer):
    def build(self, shape):
        self.table = self.add_weight(shape=shape[1:])

    def call(self, x):
        return x + self.table


rows = keras.Input((8, 8))  # the rows of an image are a sequence
x = Positions()(layers.Dense(32)(rows))
normed = layers.LayerNormalization()(x)
x = layers.add([x, layers.MultiHeadAttention(4, 8, dropout=0.1)(normed, normed)])
x = layers.Flatten()(layers.Activation("gelu")(x))
model = keras.Model(rows, layers.Dense(10, dtype="float32")(x))

config = DPKerasConfig(  # +
    epsilon=6,
    delta=1e-4,
    clipping_norm=1.0,
    batch_size=128,
    gradient_accumulation_steps=2,  # noise is added once for 256 examples
    train_steps=32,
    train_size=1024,
    poisson_sampling_in_fit=True,
)
model = make_private(model, config)  # +
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
model.fit(*train, epochs=8, verbose=0)
print("accuracy:", round(model.evaluate(*test, verbose=0, return_dict=True)["accuracy"], 3))
