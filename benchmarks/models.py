"""The models that `clipping.py` measures, in plain JAX as users write them.

Parameters are float32 and are cast to the compute dtype where they are used; normalisation,
softmax and cross entropy are float32 inside. `loss(params, batch, *frozen)` is the mean over the
batch it is given, so `jax.grad(loss)` is the non-private step.
"""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Case(NamedTuple):
    name: str
    loss: Callable[..., jax.Array]
    params: Any
    batch: Any
    batch_size: int
    frozen: tuple[Any, ...] = ()
    """Further arguments of the loss, which are not differentiated."""

    @property
    def arguments(self) -> tuple[Any, ...]:
        return (self.params, self.batch, *self.frozen)


class Random:
    """Random arrays. Small ones come from NumPy, so that nothing is compiled for them."""

    def __init__(self, seed: int):
        self.generator = np.random.default_rng(seed)

    def values(self, *shape: int, scale: float = 1.0) -> Any:
        """Uniform, with mean 0 and standard deviation `scale`."""
        bound = scale * math.sqrt(3)
        if math.prod(shape) < 2**20:
            return self.generator.uniform(-bound, bound, shape).astype(np.float32)
        key = jax.random.key(int(self.generator.integers(2**31)))
        return jax.random.uniform(key, shape, jnp.float32, -bound, bound)

    def integers(self, *shape: int, below: int) -> np.ndarray:
        return self.generator.integers(0, below, shape, dtype=np.int32)

    def labelled(self, *shape: int, classes: int) -> dict[str, Any]:
        return {"x": self.values(*shape), "label": self.integers(shape[0], below=classes)}

    def dense(self, inputs: int, outputs: int) -> dict[str, Any]:
        w = self.values(inputs, outputs, scale=inputs**-0.5)
        return {"w": w, "b": self.values(outputs, scale=0.02)}

    def gain_and_bias(self, features: int) -> dict[str, Any]:
        gain = 1 + self.values(features, scale=0.02)
        return {"gain": gain, "bias": self.values(features, scale=0.02)}

    def kernel(self, size: int, inputs: int, outputs: int) -> Any:
        return self.values(size, size, inputs, outputs, scale=(size * size * inputs) ** -0.5)


LORA_MATRICES = ("qkv", "out", "mlp_in", "mlp_out")
LORA_SCALE = 2.0


def dense(p: Any, x: jax.Array) -> jax.Array:
    y = x @ p["w"].astype(x.dtype) + p["b"].astype(x.dtype)
    if "lora" in p:
        pair = p["lora"]
        y = y + (x @ pair["A"].astype(x.dtype)) @ pair["B"].astype(x.dtype) * LORA_SCALE
    return y


def convolution(w: jax.Array, x: jax.Array, stride: int, padding: str = "SAME") -> jax.Array:
    w, names = w.astype(x.dtype), ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, w, (stride, stride), padding, dimension_numbers=names)


def normalised(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    wide = x.astype(jnp.float32)
    centred = wide - jnp.mean(wide, axes, keepdims=True)
    variance = jnp.mean(centred * centred, axes, keepdims=True)
    return (centred * jax.lax.rsqrt(variance + 1e-5)).astype(x.dtype)


def layer_norm(p: Any, x: jax.Array) -> jax.Array:
    return normalised(x, (-1,)) * p["gain"].astype(x.dtype) + p["bias"].astype(x.dtype)


def group_norm(p: Any, x: jax.Array, groups: int) -> jax.Array:
    grouped = x.reshape(*x.shape[:-1], groups, x.shape[-1] // groups)
    y = normalised(grouped, (1, 2, 4)).reshape(x.shape)
    return y * p["gain"].astype(x.dtype) + p["bias"].astype(x.dtype)


def attention(p: Any, x: jax.Array, heads: int, causal: bool) -> jax.Array:
    b, t, d = x.shape
    qkv = dense(p["qkv"], x).reshape(b, t, 3, heads, d // heads)
    q, k, v = (qkv[:, :, i] for i in range(3))
    scores = jnp.einsum("bthd,bshd->bhts", q, k).astype(jnp.float32) / math.sqrt(d // heads)
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
    mixed = jnp.einsum("bhts,bshd->bthd", weights, v).reshape(b, t, d)
    return dense(p["out"], mixed)


def block(p: Any, x: jax.Array, *, heads: int, causal: bool) -> jax.Array:
    x = x + attention(p, layer_norm(p["norm_1"], x), heads, causal)
    hidden = jax.nn.gelu(dense(p["mlp_in"], layer_norm(p["norm_2"], x)), approximate=True)
    return x + dense(p["mlp_out"], hidden)


def block_params(random: Random, width: int) -> Any:
    return {
        "norm_1": random.gain_and_bias(width),
        "qkv": random.dense(width, 3 * width),
        "out": random.dense(width, width),
        "norm_2": random.gain_and_bias(width),
        "mlp_in": random.dense(width, 4 * width),
        "mlp_out": random.dense(4 * width, width),
    }


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """The mean over all positions, which are equally many in every example."""
    logits = logits.astype(jnp.float32)
    correct = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - correct)


def mlp(dtype: Any, *, batch_size: int, widths: tuple[int, ...] = (784, 4096, 4096, 10)) -> Case:
    random = Random(0)
    params = [random.dense(*pair) for pair in itertools.pairwise(widths)]

    def loss(params: Any, batch: Any) -> jax.Array:
        x = batch["x"].astype(dtype)
        for p in params[:-1]:
            x = jax.nn.relu(dense(p, x))
        return cross_entropy(dense(params[-1], x), batch["label"])

    batch = random.labelled(batch_size, widths[0], classes=widths[-1])
    return Case("mlp", loss, params, batch, batch_size)


def wrn(
    dtype: Any,
    *,
    batch_size: int,
    blocks_per_stage: int = 2,
    widths: tuple[int, ...] = (16, 64, 128, 256),
    groups: int = 16,
    size: int = 32,
) -> Case:
    """WRN-16-4 with GroupNorm: pre-activation blocks, strides 1, 2, 2."""
    random = Random(1)
    blocks, strides = [], []
    inputs = widths[0]
    for stage, outputs in enumerate(widths[1:]):
        for i in range(blocks_per_stage):
            p = {
                "norm_1": random.gain_and_bias(inputs),
                "conv_1": random.kernel(3, inputs, outputs),
                "norm_2": random.gain_and_bias(outputs),
                "conv_2": random.kernel(3, outputs, outputs),
            }
            if i == 0:
                p["shortcut"] = random.kernel(1, inputs, outputs)
            blocks.append(p)
            strides.append(2 if stage > 0 and i == 0 else 1)
            inputs = outputs
    params = {
        "stem": random.kernel(3, 3, widths[0]),
        "blocks": blocks,
        "norm": random.gain_and_bias(widths[-1]),
        "head": random.dense(widths[-1], 10),
    }

    def loss(params: Any, batch: Any) -> jax.Array:
        x = convolution(params["stem"], batch["x"].astype(dtype), 1)
        for p, stride in zip(params["blocks"], strides, strict=True):
            active = jax.nn.relu(group_norm(p["norm_1"], x, groups))
            y = convolution(p["conv_1"], active, stride)
            y = convolution(p["conv_2"], jax.nn.relu(group_norm(p["norm_2"], y, groups)), 1)
            x = y + (convolution(p["shortcut"], active, stride) if "shortcut" in p else x)
        x = jax.nn.relu(group_norm(params["norm"], x, groups))
        return cross_entropy(dense(params["head"], jnp.mean(x, (1, 2))), batch["label"])

    batch = random.labelled(batch_size, size, size, 3, classes=10)
    return Case("wrn", loss, params, batch, batch_size)


def vit(
    dtype: Any,
    *,
    batch_size: int,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    size: int = 224,
    patch: int = 16,
    classes: int = 1000,
) -> Case:
    """ViT-B/16 with convolutional patches, a class token and learned positions."""
    random = Random(2)
    params = {
        "patches": random.kernel(patch, 3, width),
        "class_token": random.values(1, 1, width, scale=0.02),
        "positions": random.values((size // patch) ** 2 + 1, width, scale=0.02),
        "blocks": [block_params(random, width) for _ in range(layers)],
        "norm": random.gain_and_bias(width),
        "head": random.dense(width, classes),
    }

    def loss(params: Any, batch: Any) -> jax.Array:
        x = convolution(params["patches"], batch["x"].astype(dtype), patch, "VALID")
        b = x.shape[0]
        token = jnp.broadcast_to(params["class_token"].astype(dtype), (b, 1, width))
        x = jnp.concatenate([token, x.reshape(b, -1, width)], axis=1)
        x = x + params["positions"].astype(dtype)[None]
        for p in params["blocks"]:
            x = block(p, x, heads=heads, causal=False)
        x = layer_norm(params["norm"], x)[:, 0]
        return cross_entropy(dense(params["head"], x), batch["label"])

    batch = random.labelled(batch_size, size, size, 3, classes=classes)
    return Case("vit", loss, params, batch, batch_size)


class GptSize(NamedTuple):
    depth: int
    width: int
    heads: int
    length: int
    vocabulary: int


def gpt_params(random: Random, size: GptSize) -> Any:
    return {
        "embedding": random.values(size.vocabulary, size.width, scale=size.width**-0.5),
        "positions": random.values(size.length, size.width, scale=0.02),
        "blocks": [block_params(random, size.width) for _ in range(size.depth)],
        "norm": random.gain_and_bias(size.width),
    }


def gpt_loss(params: Any, tokens: jax.Array, *, dtype: Any, heads: int, remat: bool) -> jax.Array:
    """Next-token loss of tokens (B, T + 1). Blocks are a list, or one tree of stacked layers."""
    words, labels = tokens[:, :-1], tokens[:, 1:]
    embedding = params["embedding"].astype(dtype)
    x = embedding[words] + params["positions"].astype(dtype)[None]
    layer = functools.partial(block, heads=heads, causal=True)
    if remat:
        layer = jax.checkpoint(layer)
    if isinstance(params["blocks"], list):
        for p in params["blocks"]:
            x = layer(p, x)
    else:
        x, _ = jax.lax.scan(lambda x, p: (layer(p, x), None), x, params["blocks"])
    return cross_entropy(layer_norm(params["norm"], x) @ embedding.T, labels)


def gpt(
    dtype: Any, *, batch_size: int, size: GptSize, layers: str = "loop", remat: bool = False
) -> Case:
    """GPT-2 with tied embeddings. `layers` is a Python "loop" or a "scan"."""
    random = Random(3)
    params = gpt_params(random, size)
    if layers == "scan":
        params["blocks"] = jax.tree.map(lambda *leaves: np.stack(leaves), *params["blocks"])
    loss = functools.partial(gpt_loss, dtype=dtype, heads=size.heads, remat=remat)
    tokens = random.integers(batch_size, size.length + 1, below=size.vocabulary)
    return Case(f"gpt_{layers}", loss, params, tokens, batch_size)


def lora(dtype: Any, *, batch_size: int, size: GptSize, rank: int = 16) -> Case:
    """`x @ W + (x @ A) @ B * scale` for every matrix W of a GPT's blocks, which stay frozen."""
    random = Random(4)
    base = jax.tree.map(lambda x: x.astype(dtype), gpt_params(random, size))

    def pair(p: Any) -> Any:
        inputs, outputs = p["w"].shape
        # B is not initialized to zero, because A would then have no gradient.
        a = random.values(inputs, rank, scale=inputs**-0.5)
        return {"A": a, "B": random.values(rank, outputs, scale=rank**-0.5)}

    params = [{name: pair(p[name]) for name in LORA_MATRICES} for p in base["blocks"]]

    def loss(params: Any, tokens: jax.Array, base: Any) -> jax.Array:
        blocks = [
            p | {name: {**p[name], "lora": pairs[name]} for name in LORA_MATRICES}
            for p, pairs in zip(base["blocks"], params, strict=True)
        ]
        params = {**base, "blocks": blocks}
        return gpt_loss(params, tokens, dtype=dtype, heads=size.heads, remat=False)

    tokens = random.integers(batch_size, size.length + 1, below=size.vocabulary)
    return Case("lora", loss, params, tokens, batch_size, (base,))


GPT_2_SMALL = GptSize(depth=12, width=768, heads=12, length=512, vocabulary=50257)
GPT_1_3B = GptSize(depth=24, width=2048, heads=16, length=1024, vocabulary=50257)
GPT_TINY = GptSize(depth=2, width=64, heads=4, length=64, vocabulary=512)

WRN_TINY = {"blocks_per_stage": 1, "widths": (8, 16, 32), "groups": 4, "size": 16}
VIT_TINY = {"layers": 1, "width": 64, "heads": 4, "size": 32, "patch": 8}
GPT_32 = ({"batch_size": 32, "size": GPT_2_SMALL}, {"batch_size": 4, "size": GPT_TINY})
GPT_128 = ({"batch_size": 128, "size": GPT_2_SMALL}, {"batch_size": 16, "size": GPT_TINY})
GPT_LONG = (
    {"batch_size": 8, "size": GPT_1_3B},
    {"batch_size": 4, "size": GPT_TINY._replace(depth=1, length=128)},
)
# A batch for which people rematerialise, and a vocabulary that matrix units like.
GPT_REMAT = (
    {"batch_size": 32, "size": GPT_2_SMALL._replace(vocabulary=32768)},
    {"batch_size": 16, "size": GPT_TINY},
)
GPT_LONG_REMAT = ({"batch_size": 16, "size": GPT_1_3B}, GPT_REMAT[1])


def sizes(factory: Callable[..., Case], full: dict, small: dict, **both: Any) -> tuple[Any, Any]:
    """The factory at full size, and at a small size for a CPU."""
    return functools.partial(factory, **full, **both), functools.partial(factory, **small, **both)


CASES = {
    "mlp": sizes(mlp, {"batch_size": 4096}, {"batch_size": 64, "widths": (64, 256, 256, 10)}),
    "wrn": sizes(wrn, {"batch_size": 2048}, {"batch_size": 16, **WRN_TINY}),
    "vit": sizes(vit, {"batch_size": 256}, {"batch_size": 16, **VIT_TINY}),
    "gpt_loop_32": sizes(gpt, *GPT_32, layers="loop"),
    "gpt_loop_128": sizes(gpt, *GPT_128, layers="loop"),
    "gpt_scan_32": sizes(gpt, *GPT_32, layers="scan"),
    "gpt_scan_128": sizes(gpt, *GPT_128, layers="scan"),
    "gpt_1_3b": sizes(gpt, *GPT_LONG),
    "lora": sizes(lora, *GPT_LONG, rank=16),
    "gpt_scan_remat_32": sizes(gpt, *GPT_REMAT, layers="scan", remat=True),
    "gpt_1_3b_remat": sizes(gpt, *GPT_LONG_REMAT, layers="scan", remat=True),
}
# The default cases. At the small size, rows that differ only in batch size are left out.
TABLES = {
    "full": [name for name in CASES if "remat" not in name],
    "small": [name for name in CASES if "remat" not in name and "128" not in name],
}


def make(name: str, size: Literal["full", "small"], dtype: Any) -> Case:
    full, small = CASES[name]
    case = (full if size == "full" else small)(jnp.dtype(dtype))
    params, batch, frozen = jax.device_put((case.params, case.batch, case.frozen))
    return Case(name, case.loss, params, batch, case.batch_size, frozen)
