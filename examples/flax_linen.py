"""Train Flax Linen models privately: a convolutional network with `fit`, a transformer in a loop.

python examples/flax_linen.py
"""

import jax
import optax
from flax import linen as nn
from flax.training.train_state import TrainState
from sklearn.datasets import load_digits

from bevel import DPSGDConfig
from bevel.frameworks import linen as private
from bevel.training import RunOptions

digits = load_digits()
images, labels = digits.images.astype("float32") / 16, digits.target.astype("int32")
data, test = (images[:1024], labels[:1024]), (images[1024:], labels[1024:])


class Convolutional(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.Conv(16, (3, 3), strides=2)(x[..., None])
        x = nn.relu(nn.GroupNorm(4)(x))  # not BatchNorm: it mixes the examples of a batch
        x = nn.Dropout(0.1, deterministic=not train)(x.reshape(len(x), -1))
        return nn.Dense(10)(x)


class Transformer(nn.Module):
    """Reads the rows of an image as a sequence."""

    width: int = 32

    @nn.compact
    def __call__(self, x, train):
        positions = self.param("positions", nn.initializers.normal(), (8, self.width))
        x = nn.Dense(self.width)(x) + positions
        h = nn.MultiHeadDotProductAttention(4)(nn.LayerNorm()(x))
        x = nn.gelu(x + nn.Dropout(0.1, deterministic=not train)(h))
        return nn.Dense(10)(x.reshape(len(x), -1))


def new_state(model):
    params = model.init(jax.random.key(0), images[:1], train=False)["params"]
    return TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(0.01))


def loss(model, batch):
    x, y = batch
    logits = model(x, train=True)  # apply_fn, with the parameters and a key for dropout
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def accuracy(state):
    logits = state.apply_fn({"params": state.params}, test[0], train=False)
    return float((logits.argmax(-1) == test[1]).mean())


config = DPSGDConfig.default(num_examples=1024, expected_batch_size=256, iterations=30)
config = config.calibrate(epsilon=6, delta=1e-4)

quick = RunOptions(compilations=1)  # one size of padded batches, to start sooner
state = private.fit(new_state(Convolutional()), loss, data, config=config, options=quick)
print("convolutional network:", accuracy(state))

# The same in a loop of your own. The lines that are marked are those of privacy.
state, key = new_state(Transformer()), jax.random.key(1)
plan = config.make()  # +
grad_fn = private.clipped_grad(loss, plan=plan)  # instead of jax.grad(loss)
noise, noise_key = plan.noise_addition_transform, plan.secrets.noise_key  # +
noise_state = noise.init(state.params)  # +


@jax.jit
def step(state, noise_state, batch, padding, key):
    key = jax.random.fold_in(key, state.step)
    grads = grad_fn(state, batch, key, is_padding_example=padding)
    grads, noise_state = noise.update(grads, noise_state, prng_key=noise_key)  # +
    return state.apply_gradients(grads=grads), noise_state


sizes = plan.padded_sizes(count=1)  # +
for indices in plan.batches(1024):  # instead of shuffled batches
    rows = sizes.pad(indices)
    batch = data[0][rows], data[1][rows]
    state, noise_state = step(state, noise_state, batch, rows == -1, key)
print("transformer:", accuracy(state))
