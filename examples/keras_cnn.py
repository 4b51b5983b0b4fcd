"""Train a convolutional network of Keras privately. The lines that are marked are those of privacy.

python examples/keras_cnn.py
"""

import os

os.environ["KERAS_BACKEND"] = "jax"

import keras
from keras import layers
from sklearn.datasets import load_digits

from bevel.keras_api import DPKerasConfig, make_private  # +

digits = load_digits()
images, labels = digits.images[..., None].astype("float32") / 16, digits.target.astype("int32")
train, test = (images[:1024], labels[:1024]), (images[1024:], labels[1024:])

keras.utils.set_random_seed(0)
model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        layers.Conv2D(16, 3, strides=2, padding="same"),
        layers.GroupNormalization(4),  # not BatchNormalization: it mixes examples
        layers.ReLU(),
        layers.Dropout(0.1),
        layers.Flatten(),
        layers.Dense(10),
    ]
)
config = DPKerasConfig(  # +
    epsilon=6,
    delta=1e-4,
    clipping_norm=1.0,
    batch_size=256,
    gradient_accumulation_steps=1,
    train_steps=32,
    train_size=1024,
    poisson_sampling_in_fit=True,
)
model = make_private(model, config)  # +
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
stop = keras.callbacks.EarlyStopping("val_loss", patience=3)
history = model.fit(*train, epochs=8, validation_data=test, callbacks=[stop], verbose=2)

# Metrics of the training data are not private, those of test data are: print the latter.
print("accuracy:", round(history.history["val_accuracy"][-1], 3))
print("noise multiplier:", round(model.get_noise_multiplier(), 3))
