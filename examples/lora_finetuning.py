"""Fine-tune a transformer privately with LoRA, on a frozen base in int8.

A transformer learns from public images of digits. Private images are transposed, and only low-rank
factors of the attention and the MLP, and the output layer, learn from them.

python examples/lora_finetuning.py
"""

import jax
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits

from bevel import DPSGDConfig
from bevel.frameworks import nnx as private
from bevel.training import LoRA, RunOptions

digits = load_digits()
images, labels = digits.images.astype("float32") / 16, digits.target.astype("int32")
public = images[:700], labels[:700]
data = images[700:1400].transpose(0, 2, 1), labels[700:1400]
test = images[1400:].transpose(0, 2, 1), labels[1400:]


class Block(nnx.Module):
    def __init__(self, width, rngs):
        self.norms = nnx.List([nnx.LayerNorm(width, rngs=rngs) for _ in range(2)])
        self.attention = nnx.MultiHeadAttention(4, width, decode=False, rngs=rngs)
        self.up = nnx.Linear(width, 2 * width, rngs=rngs)
        self.down = nnx.Linear(2 * width, width, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.down(nnx.gelu(self.up(self.norms[1](x))))


class Transformer(nnx.Module):
    """Reads the rows of an image as a sequence."""

    def __init__(self, rngs, width=64, depth=1):
        self.embed = nnx.Linear(8, width, rngs=rngs)
        self.positions = nnx.Embed(8, width, rngs=rngs)
        self.blocks = nnx.List([Block(width, rngs) for _ in range(depth)])
        self.head = nnx.Linear(8 * width, 10, rngs=rngs)

    def __call__(self, x):
        x = self.embed(x) + self.positions.embedding
        for block in self.blocks:
            x = block(x)
        return self.head(x.reshape(len(x), -1))


def loss(model, batch):
    x, y = batch
    return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()


def accuracy(model):
    return f"{float((model(test[0]).argmax(-1) == test[1]).mean()):.3f}"


# Without privacy, on public data.
model = Transformer(nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adam(0.002), wrt=nnx.Param)


@nnx.jit
def step(model, optimizer, batch):
    optimizer.update(model, nnx.grad(loss)(model, batch))


for rows in np.random.default_rng(0).integers(0, 700, (150, 128)):
    step(model, optimizer, (public[0][rows], public[1][rows]))
print("accuracy on private images before:", accuracy(model))

# With privacy, on private data: LoRA is one argument.
lora = LoRA(["*attention/*/kernel", "*up/kernel", "*down/kernel"], 4, full="head/*", base="int8")
config = DPSGDConfig.default(num_examples=700, expected_batch_size=350, iterations=40)
config = config.calibrate(epsilon=6, delta=1e-4)
state = private.fit(
    model,
    loss,
    data,
    config=config,
    optimizer=optax.adam(0.01),
    lora=lora,
    options=RunOptions(compilations=1),
)
trained, frozen = (jax.tree.leaves(tree) for tree in (state.params, state.model_state))
print("accuracy on private images after:", accuracy(model))
print(f"trained: {sum(x.size for x in trained)} numbers in float32")
print(f"frozen: {sum(x.size for x in frozen)} numbers in {sum(x.nbytes for x in frozen)} bytes")
