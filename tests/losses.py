"""One table of losses: a row here joins every test that runs over `NAMES`.

Each loss takes (params, batch), batch a dict with a leading batch axis, and is the mean over the
batch at any batch size unless its case says otherwise. Losses compute in the dtype of their
arguments, so that the float64 oracle runs the same function. They are smooth, or their discrete
choices (conditions, ranks, rounding) are made on values that are exact in every dtype, so that
rounding cannot take another branch than the oracle does.

Axes: B examples, T positions, D in, K out, V vocabulary. Sizes divide meshes of (8,) and (4, 2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

B, T, D, K, V, H = 8, 4, 8, 4, 8, 16


@dataclass(frozen=True)
class Case:
    name: str
    loss: Callable[[Any, Any], jax.Array]
    params: Any
    batch: Any
    is_mean: bool  # the loss of a batch is the mean of the losses of its examples


def make(name: str, dtype: Any = jnp.float32, batch_size: int = B, seed: int = 0) -> Case:
    """The case of that name: the loss is the same object every time, equal seeds draw equally."""
    loss, shapes, batch, is_mean = _TABLE[name]
    draw = _Draw(dtype, batch_size, seed)
    params = jax.tree.map(draw.param, shapes, is_leaf=lambda x: isinstance(x, tuple))
    return Case(name, loss, params, batch(draw), is_mean)


class _Draw:
    """Random arrays of one dtype. Examples differ in scale, so that their gradient norms do."""

    def __init__(self, dtype, batch_size, seed):
        self.dtype, self.batch_size = dtype, batch_size
        self.rng = np.random.default_rng(seed)

    def param(self, shape):
        if isinstance(shape, jax.ShapeDtypeStruct):
            return self.param(shape.shape).astype(shape.dtype)
        fan_in = np.prod(shape[:-1]) if len(shape) > 1 else 4
        return jnp.asarray(self.rng.normal(size=shape) / np.sqrt(fan_in), self.dtype)

    def data(self, *shape):
        scale = 2.0 ** self.rng.uniform(-2, 1, size=(self.batch_size,) + (1,) * len(shape))
        return jnp.asarray(scale * self.rng.normal(size=(self.batch_size, *shape)), self.dtype)

    def ints(self, below, *shape):
        return jnp.asarray(self.rng.integers(below, size=(self.batch_size, *shape)), jnp.int32)

    def signs(self):
        return jnp.asarray(self.rng.choice([-1.0, 1.0], size=self.batch_size), self.dtype)

    def ranks(self, n):
        rows = np.tile(np.arange(n), (self.batch_size, 1))
        return jnp.asarray(self.rng.permuted(rows, axis=-1), self.dtype)


_TABLE: dict[str, tuple] = {}


def _case(shapes, batch, is_mean=True):
    def register(loss):
        _TABLE[loss.__name__] = (loss, shapes, batch, is_mean)
        return loss

    return register


def _regression(d):
    return {"x": d.data(D), "y": d.data(K)}


def _classification(d):
    return {"x": d.data(D), "label": d.ints(K)}


def _images(d):
    return {"image": d.data(8, 8, 4), "label": d.ints(K)}


def _sequences(d):
    return {"tokens": d.ints(V, T)}


def _squared(prediction, batch):
    return jnp.mean((prediction - batch["y"]) ** 2)


def _cross_entropy(logits, label):
    one_hot = jax.nn.one_hot(label, logits.shape[-1], dtype=logits.dtype)
    return -jnp.mean(jnp.sum(jax.nn.log_softmax(logits) * one_hot, axis=-1))


def _next_token(logits, tokens):
    return _cross_entropy(logits[:, :-1], tokens[:, 1:])


def _dense(x, p):
    return x @ p["w"] + p["b"][None]


def _affine(*shape):
    return {"w": shape, "b": (*shape[:-2], shape[-1])}


TWO_LAYERS = [_affine(D, H), _affine(H, K)]
W_AND_OUT = {"w": (D, H), "out": (H, K)}


# Every parameter is used once.


@_case(_affine(D, K), _regression)
def linear(params, batch):
    return _squared(_dense(batch["x"], params), batch)


@_case(TWO_LAYERS, _classification)
def mlp(params, batch):
    logits = _dense(jnp.tanh(_dense(batch["x"], params[0])), params[1])
    return _cross_entropy(logits, batch["label"])


def _convolve(x, kernel, stride, padding, **options):
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        x, kernel, (stride, stride), padding, dimension_numbers=layout, **options
    )


@_case({"kernel": (3, 3, 4, 8), "b": (8,), "head": _affine(8, K)}, _images)
def conv(params, batch):
    h = _convolve(batch["image"], params["kernel"], 1, "SAME") + params["b"][None, None, None]
    return _cross_entropy(_dense(jnp.mean(jnp.tanh(h), (1, 2)), params["head"]), batch["label"])


@_case({"kernel": (3, 3, 2, 8), "head": _affine(8, K)}, _images)
def conv_strided_grouped(params, batch):
    options = {"rhs_dilation": (2, 2), "feature_group_count": 2}
    h = _convolve(batch["image"], params["kernel"], 2, "VALID", **options)
    return _cross_entropy(_dense(jnp.mean(jnp.tanh(h), (1, 2)), params["head"]), batch["label"])


@_case({"table": (V, D), "head": _affine(D, K)}, lambda d: _sequences(d) | {"label": d.ints(K)})
def embedding(params, batch):
    h = jnp.mean(params["table"][batch["tokens"]], axis=1)
    return _cross_entropy(_dense(jnp.tanh(h), params["head"]), batch["label"])


@_case({"w": (D, K), "gain": (), "unused": (K,)}, _regression)
def scalar_and_unused(params, batch):
    return _squared(params["gain"] * (batch["x"] @ params["w"]), batch)


_LOW = jax.ShapeDtypeStruct((D, H), jnp.bfloat16)
_HIGH = jax.ShapeDtypeStruct((H, K), jnp.float32)


@_case({"low": _LOW, "high": _HIGH}, _regression)
def mixed_dtypes(params, batch):
    h = jnp.tanh(batch["x"].astype(params["low"].dtype) @ params["low"])
    prediction = h.astype(params["high"].dtype) @ params["high"]
    return jnp.mean((prediction - batch["y"].astype(prediction.dtype)) ** 2)


# Parameters are used more than once, or computed with before they meet an example.


@_case({"table": (V, D), "w": (D, D)}, _sequences)
def tied(params, batch):
    h = jnp.tanh(params["table"][batch["tokens"]] @ params["w"])
    return _next_token(h @ params["table"].T, batch["tokens"])


def _layer_norm(x, p):
    x = x - jnp.mean(x, -1, keepdims=True)
    x = x * lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-3)
    return x * p["scale"][None, None] + p["shift"][None, None]


_EMBED = {"table": (V, D), "position": (T, D), "norm": {"scale": (D,), "shift": (D,)}}
_BLOCK = {"qkv": (D, 3 * D), "out": (D, D), "up": _affine(D, H), "down": (H, D), "head": (D, V)}


@_case(_EMBED | _BLOCK, _sequences)
def transformer(params, batch):
    tokens = batch["tokens"]
    b, t = tokens.shape
    x = params["table"][tokens] + params["position"][None]
    h = _layer_norm(x, params["norm"]) @ params["qkv"]
    q, k, v = jnp.split(h.reshape(b, t, 2, 3 * D // 2), 3, axis=-1)  # two heads
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2
    visible = jnp.broadcast_to(jnp.tril(jnp.ones((t, t), bool))[None, None], scores.shape)
    attention = jax.nn.softmax(jnp.where(visible, scores, -1e4), axis=-1)
    x = x + jnp.einsum("bhqk,bkhd->bqhd", attention, v).reshape(b, t, D) @ params["out"]
    flat = x.reshape(b * t, D)  # hides the example axis, as many models do
    flat = flat + jax.nn.gelu(_dense(flat, params["up"])) @ params["down"]
    return _next_token((flat @ params["head"]).reshape(b, t, V), tokens)


@_case(TWO_LAYERS, _classification)
def weight_decay_in_loss(params, batch):
    return mlp(params, batch) + 0.1 * sum(jnp.sum(p**2) for p in jax.tree.leaves(params))


@_case({"v": (D, K), "g": (K,)}, _regression)
def weight_norm(params, batch):
    w = params["g"][None] * params["v"] / jnp.linalg.norm(params["v"], axis=0, keepdims=True)
    return _squared(batch["x"] @ w, batch)


_FROZEN = np.random.default_rng(7).normal(size=(D, K)) / 4


@_case({"a": (D, 2), "b": (2, K)}, _regression)
def lora_merged(params, batch):
    frozen = jnp.asarray(_FROZEN, batch["x"].dtype)
    return _squared(jnp.tanh(batch["x"] @ (frozen + params["a"] @ params["b"])), batch)


@_case({"frozen": (D, K), "a": (D, 2), "b": (2, K)}, _regression)
def lora_split(params, batch):
    frozen = lax.stop_gradient(params["frozen"])
    return _squared(jnp.tanh(batch["x"] @ frozen + batch["x"] @ params["a"] @ params["b"]), batch)


# Control flow.

_CELL = {"in": (D, D), "state": (D, D), "b": (D,), "out": (D, K)}


@_case(_CELL, lambda d: {"x": d.data(T, D), "y": d.data(K)})
def rnn(params, batch):
    def step(h, x):
        h = jnp.tanh(x @ params["in"] + h @ params["state"] + params["b"][None])
        return h, h

    start = jnp.zeros((batch["x"].shape[0], D), batch["x"].dtype)
    last, states = lax.scan(step, start, jnp.swapaxes(batch["x"], 0, 1))
    return _squared(last @ params["out"], batch) + jnp.mean(states**2)


def _through_layers(params, batch, wrap):
    def layer(h, p):  # p is this layer's slice; gain is shared by the layers
        return h + params["gain"][None] * jnp.tanh(_dense(h, p)), None

    h, _ = lax.scan(wrap(layer), batch["x"], params["layers"])
    return _squared(h @ params["out"], batch)


LAYERS = {"layers": _affine(3, D, D), "gain": (D,), "out": (D, K)}


@_case(LAYERS, _regression)
def scanned_layers(params, batch):
    return _through_layers(params, batch, wrap=lambda layer: layer)


@_case(LAYERS, _regression)
def scanned_remat(params, batch):
    return _through_layers(params, batch, wrap=jax.checkpoint)


@_case(TWO_LAYERS, _regression)
def remat(params, batch):
    block = jax.checkpoint(lambda p, h: _dense(jnp.tanh(_dense(h, p[0])), p[1]))
    return _squared(block(params, batch["x"]), batch)


@_case({"layer": _affine(D, D), "out": (D, K)}, _regression)
def nested_jit(params, batch):
    layer = jax.jit(lambda p, h: jnp.tanh(_dense(h, p)))
    h = layer(params["layer"], layer(params["layer"], batch["x"]))
    return _squared(h @ params["out"], batch)


def _route(params, gate, x):
    def left(x):
        return jnp.tanh(x @ params["left"])

    def right(x):
        return x @ params["right"]["a"] @ params["right"]["b"]

    return lax.cond(gate > 0, left, right, x)


EXPERTS = {"left": (D, D), "right": {"a": (D, 2), "b": (2, D)}, "out": (D, K)}


@_case(EXPERTS, lambda d: _regression(d) | {"gate": d.signs()})
def mixture_by_cond(params, batch):
    h = lax.map(lambda example: _route(params, example["gate"], example["x"]), batch)
    return _squared(h @ params["out"], batch)


@_case(EXPERTS, lambda d: _regression(d) | {"gate": d.signs()}, is_mean=False)
def cond_on_the_batch(params, batch):
    return _squared(_route(params, jnp.sum(batch["gate"]), batch["x"]) @ params["out"], batch)


# Differentiation rules of the user's own, none of them the gradient of its forward pass.


@jax.custom_vjp
def _quantised(w):
    return jnp.round(4 * w) / 4


@jax.custom_vjp
def _half_gradient(x):
    return x


@jax.custom_vjp
def _quantised_dense(w, x):
    return x @ (jnp.round(4 * w) / 4)


_quantised.defvjp(lambda w: (_quantised(w), None), lambda _, g: (g,))
_half_gradient.defvjp(lambda x: (x, None), lambda _, g: (g / 2,))
_quantised_dense.defvjp(
    lambda w, x: (_quantised_dense(w, x), (w, x)),
    lambda saved, g: (saved[1].T @ g / 2, g @ saved[0].T),
)


@_case(W_AND_OUT, _regression)
def straight_through(params, batch):
    h = _half_gradient(jnp.tanh(batch["x"] @ _quantised(params["w"])))
    return _squared(h @ params["out"], batch)


@_case(W_AND_OUT, _regression)
def custom_vjp(params, batch):
    h = jnp.tanh(_quantised_dense(params["w"], batch["x"]))
    return _squared(_quantised_dense(params["out"], h), batch)


@jax.custom_jvp
def _scaled_tanh(scale, x):
    return scale[None] * jnp.tanh(x)


@_scaled_tanh.defjvp
def _scaled_tanh_jvp(primals, tangents):
    (scale, x), (scale_dot, x_dot) = primals, tangents
    y = jnp.tanh(x)
    return scale[None] * y, scale_dot[None] * y + scale[None] * x_dot * (1 - y**2) / 2


@_case(W_AND_OUT | {"scale": (H,)}, _regression)
def custom_jvp(params, batch):
    h = _scaled_tanh(params["scale"], batch["x"] @ params["w"])
    return _squared(h @ params["out"], batch)


# Other primitives and transformations.


@_case({"w": (D, H), "rank": (H,), "bias": (H,)}, lambda d: _regression(d) | {"rank": d.ranks(H)})
def sort_and_top_k(params, batch):
    # Ranks come from the batch: neighbours are 4 apart, and tanh moves each by less than 1.
    scores = jnp.tanh(batch["x"] @ params["w"]) + 4 * batch["rank"]
    best, where = lax.top_k(scores, K)
    ordered = jnp.sort(scores, axis=-1) * params["rank"][None]
    return _squared(best / 32 + params["bias"][where], batch) + jnp.mean(ordered**2) / 1024


@_case(W_AND_OUT, _regression)
def vmap_inside(params, batch):
    def one(x, y):
        return jnp.sum((jnp.tanh(x @ params["w"]) @ params["out"] - y) ** 2)

    return jnp.mean(jax.vmap(one)(batch["x"], batch["y"]))


@_case(TWO_LAYERS, _classification)
def grad_inside(params, batch):
    def energy(x):
        return jnp.sum(_dense(jnp.tanh(_dense(x, params[0])), params[1]))

    force = jax.grad(energy)(batch["x"])
    return jnp.mean(jnp.sum(force**2, axis=-1)) + mlp(params, batch)


NAMES = tuple(_TABLE)
