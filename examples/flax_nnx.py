"""Train Flax NNX models privately: a convolutional network with `fit`, a transformer in a loop.

python examples/flax_nnx.py
"""

import optax
from flax import nnx
from sklearn.datasets import load_digits

from bevel import DPSGDConfig
from bevel.frameworks import nnx as private
from bevel.training import RunOptions

digits = load_digits()
images, labels = digits.images.astype("float32") / 16, digits.target.astype("int32")
data, test = (images[:1024], labels[:1024]), (images[1024:], labels[1024:])


class Convolutional(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(1, 16, (3, 3), strides=2, rngs=rngs)
        self.norm = nnx.GroupNorm(16, num_groups=4, rngs=rngs)  # not BatchNorm: it mixes examples
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.head = nnx.Linear(16 * 16, 10, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.norm(self.conv(x[..., None])))
        return self.head(self.dropout(x.reshape(len(x), -1)))


class Transformer(nnx.Module):
    """Reads the rows of an image as a sequence."""

    def __init__(self, rngs, width=32):
        self.embed = nnx.Linear(8, width, rngs=rngs)
        self.positions = nnx.Embed(8, width, rngs=rngs)
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(4, width, decode=False, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.head = nnx.Linear(8 * width, 10, rngs=rngs)

    def __call__(self, x):
        x = self.embed(x) + self.positions.embedding
        x = nnx.gelu(x + self.dropout(self.attention(self.norm(x))))
        return self.head(x.reshape(len(x), -1))


def loss(model, batch):
    x, y = batch
    return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()


def accuracy(model):
    model.eval()
    return {"accuracy": float((model(test[0]).argmax(-1) == test[1]).mean())}


config = DPSGDConfig.default(num_examples=1024, expected_batch_size=256, iterations=30)
config = config.calibrate(epsilon=6, delta=1e-4)

model = Convolutional(nnx.Rngs(0))
quick = RunOptions(compilations=1)  # one size of padded batches, to start sooner
private.fit(model, loss, data, config=config, optimizer=optax.adam(0.01), options=quick)
print("convolutional network:", accuracy(model))

# The same in a loop of your own. The lines that are marked are those of privacy.
model = Transformer(nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adam(0.01), wrt=nnx.Param)
plan = config.make()  # +
grad_fn = private.clipped_grad(loss, plan=plan)  # instead of nnx.grad(loss)
noise, key = plan.noise_addition_transform, plan.secrets.noise_key  # +
noise_state = noise.init(nnx.state(model, nnx.Param))  # +


@nnx.jit
def step(model, optimizer, noise_state, batch, padding):
    grads = grad_fn(model, batch, is_padding_example=padding)
    grads, noise_state = noise.update(grads, noise_state, prng_key=key)  # +
    optimizer.update(model, grads)
    return noise_state


sizes = plan.padded_sizes(count=1)  # +
for indices in plan.batches(1024):  # instead of shuffled batches
    rows = sizes.pad(indices)
    batch = data[0][rows], data[1][rows]
    noise_state = step(model, optimizer, noise_state, batch, rows == -1)
print("transformer:", accuracy(model))
