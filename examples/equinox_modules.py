"""Train Equinox modules privately: a convolutional network with `fit`, a transformer in a loop.

python examples/equinox_modules.py
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits

from bevel import DPSGDConfig
from bevel.frameworks import equinox as private
from bevel.training import RunOptions

digits = load_digits()
images, labels = digits.images.astype("float32") / 16, digits.target.astype("int32")
data, test = (images[:1024], labels[:1024]), (images[1024:], labels[1024:])


class Convolutional(eqx.Module):
    conv: eqx.nn.Conv2d
    norm: eqx.nn.GroupNorm
    dropout: eqx.nn.Dropout
    head: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key)
        self.conv = eqx.nn.Conv2d(1, 16, 3, stride=2, padding=1, key=keys[0])
        self.norm = eqx.nn.GroupNorm(4, 16)  # not BatchNorm: it mixes the examples of a batch
        self.dropout = eqx.nn.Dropout(0.1)
        self.head = eqx.nn.Linear(16 * 16, 10, key=keys[1])

    def __call__(self, x, key=None):
        x = jax.nn.relu(self.norm(self.conv(x[None])))
        return self.head(self.dropout(x.reshape(-1), key=key))


class Transformer(eqx.Module):
    """Reads the rows of an image as a sequence."""

    embed: eqx.nn.Linear
    positions: jax.Array
    norm: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    dropout: eqx.nn.Dropout
    head: eqx.nn.Linear

    def __init__(self, key, width=32):
        keys = jax.random.split(key, 3)
        self.embed = eqx.nn.Linear(8, width, key=keys[0])
        self.positions = jnp.zeros((8, width))
        self.norm = eqx.nn.LayerNorm(width)
        self.attention = eqx.nn.MultiheadAttention(4, width, key=keys[1])
        self.dropout = eqx.nn.Dropout(0.1)
        self.head = eqx.nn.Linear(8 * width, 10, key=keys[2])

    def __call__(self, x, key=None):
        x = jax.vmap(self.embed)(x) + self.positions
        h = jax.vmap(self.norm)(x)
        x = jax.nn.gelu(x + self.dropout(self.attention(h, h, h), key=key))
        return self.head(x.reshape(-1))


def loss(model, batch, key):
    x, y = batch
    logits = jax.vmap(model)(x, jax.random.split(key, len(x)))
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def accuracy(model):
    logits = jax.vmap(eqx.nn.inference_mode(model))(test[0])
    return float((logits.argmax(-1) == test[1]).mean())


config = DPSGDConfig.default(num_examples=1024, expected_batch_size=256, iterations=30)
config = config.calibrate(epsilon=6, delta=1e-4)
optimizer = optax.adam(0.01)

model = Convolutional(jax.random.key(0))
quick = RunOptions(compilations=1)  # one size of padded batches, to start sooner
model = private.fit(model, loss, data, config=config, optimizer=optimizer, options=quick)
print("convolutional network:", accuracy(model))

# The same in a loop of your own. The lines that are marked are those of privacy.
model, key = Transformer(jax.random.key(0)), jax.random.key(1)
params = eqx.filter(model, eqx.is_inexact_array)
opt_state = optimizer.init(params)
plan = config.make()  # +
grad_fn = private.clipped_grad(loss, plan=plan)  # instead of eqx.filter_grad(loss)
noise, noise_key = plan.noise_addition_transform, plan.secrets.noise_key  # +
noise_state = noise.init(params)  # +


@eqx.filter_jit
def step(model, opt_state, noise_state, batch, padding, key):
    grads = grad_fn(model, batch, key, is_padding_example=padding)
    grads, noise_state = noise.update(grads, noise_state, prng_key=noise_key)  # +
    updates, opt_state = optimizer.update(grads, opt_state)
    return eqx.apply_updates(model, updates), opt_state, noise_state


sizes = plan.padded_sizes(count=1)  # +
for number, indices in enumerate(plan.batches(1024)):  # instead of shuffled batches
    rows = sizes.pad(indices)
    batch, own = (data[0][rows], data[1][rows]), jax.random.fold_in(key, number)
    model, opt_state, noise_state = step(model, opt_state, noise_state, batch, rows == -1, own)
print("transformer:", accuracy(model))
