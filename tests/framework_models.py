"""A convolutional network and a transformer in each framework, with a loss and a batch."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax import nnx
from flax.training.train_state import TrainState

CLASSES, TOKENS, LENGTH, WIDTH = 3, 11, 5, 8
KINDS = ("cnn", "transformer")


def batch_for(kind, size=8, seed=0):
    rng = np.random.default_rng(seed)
    if kind == "cnn":
        x = rng.normal(size=(size, 6, 6, 2)).astype(np.float32)
    else:
        x = rng.integers(0, TOKENS, (size, LENGTH)).astype(np.int32)
    return {"x": x, "y": rng.integers(0, CLASSES, size).astype(np.int32)}


def cross_entropy(logits, y):
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def loss(model, batch):
    """For NNX and Linen."""
    return cross_entropy(model(batch["x"]), batch["y"])


def loss_of_rows(model, batch, key):
    """For Equinox, whose modules take one example."""
    logits = jax.vmap(model)(batch["x"], jax.random.split(key, len(batch["y"])))
    return cross_entropy(logits, batch["y"])


# Flax NNX.


class NNXConvolutional(nnx.Module):
    def __init__(self, rngs, norm="group"):
        self.conv = nnx.Conv(2, 4, (3, 3), rngs=rngs)
        if norm == "group":
            self.norm = nnx.GroupNorm(4, num_groups=2, rngs=rngs)
        else:
            self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.4, rngs=rngs)
        self.head = nnx.Linear(4 * 9, CLASSES, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.norm(self.conv(x)))
        x = nnx.avg_pool(x, (2, 2), (2, 2))
        return self.head(self.dropout(x.reshape(len(x), -1)))


class NNXBlock(nnx.Module):
    def __init__(self, rngs):
        self.norms = nnx.List([nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(2)])
        self.attention = nnx.MultiHeadAttention(
            num_heads=2,
            in_features=WIDTH,
            dropout_rate=0.2,
            deterministic=False,
            decode=False,
            rngs=rngs,
        )
        self.up = nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(2 * WIDTH, WIDTH, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)

    def __call__(self, x):
        x = x + self.dropout(self.attention(self.norms[0](x)))
        return x + self.dropout(self.down(nnx.gelu(self.up(self.norms[1](x)))))


class NNXTransformer(nnx.Module):
    def __init__(self, rngs):
        self.embed = nnx.Embed(TOKENS, WIDTH, rngs=rngs)
        self.blocks = nnx.List([NNXBlock(rngs)])
        self.head = nnx.Linear(WIDTH, CLASSES, rngs=rngs)

    def __call__(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def nnx_model(kind, seed=0):
    rngs = nnx.Rngs(seed)
    return NNXConvolutional(rngs) if kind == "cnn" else NNXTransformer(rngs)


# Flax Linen.


class LinenConvolutional(nn.Module):
    norm: str = "group"
    running: bool = True

    @nn.compact
    def __call__(self, x, train=True):
        x = nn.Conv(4, (3, 3))(x)
        if self.norm == "group":
            x = nn.GroupNorm(2)(x)
        else:
            x = nn.BatchNorm(use_running_average=self.running)(x)
        x = nn.avg_pool(nn.relu(x), (2, 2), (2, 2)).reshape(len(x), -1)
        return nn.Dense(CLASSES)(nn.Dropout(0.4, deterministic=not train)(x))


class LinenTransformer(nn.Module):
    @nn.compact
    def __call__(self, tokens, train=True):
        x = nn.Embed(TOKENS, WIDTH)(tokens)
        h = nn.LayerNorm()(x)
        h = nn.MultiHeadDotProductAttention(2, dropout_rate=0.2, deterministic=not train)(h)
        x = x + nn.Dropout(0.2, deterministic=not train)(h)
        x = x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(2 * WIDTH)(nn.LayerNorm()(x))))
        return nn.Dense(CLASSES)(x.mean(1))


class StateWithStatistics(TrainState):
    batch_stats: object = None


def linen_state(kind, seed=0, tx=None, **options):
    model = LinenConvolutional(**options) if kind == "cnn" else LinenTransformer()
    x = batch_for(kind, 1)["x"]
    variables = model.init(jax.random.key(seed), x, train=False)
    return StateWithStatistics.create(
        apply_fn=model.apply,
        params=variables["params"],
        tx=optax.sgd(0.1) if tx is None else tx,
        batch_stats=variables.get("batch_stats"),
    )


# Equinox.


class EquinoxConvolutional(eqx.Module):
    conv: eqx.nn.Conv2d
    norm: eqx.Module
    dropout: eqx.nn.Dropout
    head: eqx.nn.Linear
    activation: object
    bias: jax.Array | None
    scale: float = eqx.field(static=True)

    def __init__(self, key, norm=None):
        first, second = jax.random.split(key)
        self.conv = eqx.nn.Conv2d(2, 4, 3, padding=1, key=first)
        self.norm = eqx.nn.GroupNorm(2, 4) if norm is None else norm
        self.dropout = eqx.nn.Dropout(0.4)
        self.head = eqx.nn.Linear(4 * 9, CLASSES, key=second)
        self.activation = jax.nn.relu  # a function as a leaf
        self.bias = None
        self.scale = 1.5

    def __call__(self, x, key=None, state=None):
        x = self.conv(jnp.moveaxis(x, -1, 0))
        if state is not None:
            x, state = self.norm(x, state)
        else:
            x = self.norm(x)
        x = self.scale * self.activation(x)
        x = x.reshape(4, 3, 2, 3, 2).mean((2, 4)).reshape(-1)
        logits = self.head(self.dropout(x, key=key))
        return logits if state is None else (logits, state)


class EquinoxBlock(eqx.Module):
    norm: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    mlp: eqx.nn.MLP
    dropout: eqx.nn.Dropout

    def __init__(self, key):
        first, second = jax.random.split(key)
        self.norm = eqx.nn.LayerNorm(WIDTH)
        self.attention = eqx.nn.MultiheadAttention(2, WIDTH, key=first)
        self.mlp = eqx.nn.MLP(WIDTH, WIDTH, 2 * WIDTH, 1, activation=jax.nn.gelu, key=second)
        self.dropout = eqx.nn.Dropout(0.2)

    def __call__(self, x, key):
        h = jax.vmap(self.norm)(x)
        x = x + self.dropout(self.attention(h, h, h), key=key)
        return x + jax.vmap(self.mlp)(x)


class EquinoxTransformer(eqx.Module):
    embed: eqx.nn.Embedding
    blocks: list
    head: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 4)
        self.embed = eqx.nn.Embedding(TOKENS, WIDTH, key=keys[0])
        self.blocks = [EquinoxBlock(keys[1])]
        self.head = eqx.nn.Linear(WIDTH, CLASSES, key=keys[3])

    def __call__(self, tokens, key):
        x = jax.vmap(self.embed)(tokens)
        for i, block in enumerate(self.blocks):
            x = block(x, jax.random.fold_in(key, i))
        return self.head(x.mean(0))


def equinox_model(kind, seed=0):
    key = jax.random.key(seed)
    return EquinoxConvolutional(key) if kind == "cnn" else EquinoxTransformer(key)
