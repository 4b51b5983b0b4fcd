"""Models of many kinds, small: a row here joins every test over `ARCHITECTURES`.

Each loss takes (params, batch) and is the mean over the batch at any batch size. Losses compute in
the dtype of their arguments, and are smooth, or their choices are made on values that are exact in
every dtype, like those of `losses.py`.

Axes: B examples, T positions, D features, H hidden, E experts, N nodes, V rows of a table.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

B, T, D, H, E, N, V = 8, 16, 16, 32, 4, 12, 1_000_000


class Architecture(NamedTuple):
    loss: Callable[[Any, Any], jax.Array]
    params: Any  # shapes
    batch: Callable[[np.random.Generator], Any]

    def arguments(self):
        rng = np.random.default_rng(0)

        def param(shape):
            fan_in = np.prod(shape[:-1]) if len(shape) > 1 else 4
            return jnp.asarray(rng.normal(size=shape) / np.sqrt(fan_in), jnp.float32)

        params = jax.tree.map(param, self.params, is_leaf=lambda x: isinstance(x, tuple))
        return params, jax.tree.map(jnp.asarray, self.batch(rng))


ARCHITECTURES: dict[str, Architecture] = {}


def _architecture(params, batch):
    def register(loss):
        ARCHITECTURES[loss.__name__] = Architecture(loss, params, batch)
        return loss

    return register


def _scaled(rng, *shape):
    """Data of examples that differ in scale, so that their gradient norms do."""
    scale = 2.0 ** rng.uniform(-2, 1, size=(B, *(1,) * len(shape)))
    return (scale * rng.normal(size=(B, *shape))).astype(np.float32)


def _sequences(rng):
    ranks = rng.permuted(np.tile(np.arange(E), (B, T, 1)), axis=-1).astype(np.float32)
    return {"x": _scaled(rng, T, D), "y": _scaled(rng, T, D), "rank": ranks}


def _squared(prediction, batch):
    return jnp.mean((prediction - batch["y"]) ** 2)


# Mixtures of experts. Experts are chosen by ranks in the batch: neighbours are 4 apart, and tanh
# moves each by less than 1. Their weights come from the router alone.

EXPERTS = {"router": (D, E), "up": (E, D, 8 * H), "down": (E, 8 * H, D)}


def _routed(params, batch):
    scores = jnp.tanh(batch["x"] @ params["router"])
    return scores + 4 * batch["rank"], jax.nn.softmax(scores)


@_architecture(EXPERTS, _sequences)
def ragged_experts(params, batch):
    choice, weights = _routed(params, batch)
    expert = jnp.argmax(choice, axis=-1).reshape(-1)
    order = jnp.argsort(expert)
    sizes = jnp.bincount(expert, length=E).astype(jnp.int32)
    rows = batch["x"].reshape(-1, D)[order]
    h = jnp.tanh(lax.ragged_dot(rows, params["up"], sizes))
    sorted_outputs = lax.ragged_dot(h, params["down"], sizes)
    outputs = jnp.zeros_like(sorted_outputs).at[order].set(sorted_outputs)
    gate = jnp.take_along_axis(weights.reshape(-1, E), expert[:, None], axis=-1)
    return _squared((gate * outputs).reshape(batch["x"].shape), batch)


@_architecture(EXPERTS, _sequences)
def dense_experts(params, batch):
    choice, weights = _routed(params, batch)
    best = jax.nn.one_hot(lax.top_k(choice, 2)[1], E, dtype=weights.dtype).sum(-2)
    h = jnp.tanh(jnp.einsum("btd,edh->bteh", batch["x"], params["up"]))
    return _squared(jnp.einsum("bteh,ehd,bte->btd", h, params["down"], best * weights), batch)


# Recurrences.


@_architecture({"decay": (D, H), "in": (D, H), "out": (H, D)}, _sequences)
def state_space(params, batch):
    decay = jax.nn.sigmoid(batch["x"] @ params["decay"])
    inputs = batch["x"] @ params["in"]

    def combine(left, right):
        return left[0] * right[0], left[1] * right[0] + right[1]

    _, states = lax.associative_scan(combine, (decay, inputs), axis=1)
    return _squared(jnp.tanh(states) @ params["out"], batch)


@_architecture({"in": (D, 4 * H), "state": (H, 4 * H), "b": (4 * H,), "out": (H, D)}, _sequences)
def lstm(params, batch):
    def step(carry, x):
        h, c = carry
        gates = x @ params["in"] + h @ params["state"] + params["b"][None]
        i, f, o, g = jnp.split(gates, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    start = jnp.zeros((batch["x"].shape[0], H), batch["x"].dtype)
    _, states = lax.scan(step, (start, start), jnp.swapaxes(batch["x"], 0, 1))
    return _squared(jnp.swapaxes(states, 0, 1) @ params["out"], batch)


# Graphs.


def _graphs(rng):
    return {
        "x": _scaled(rng, N, D),
        "y": _scaled(rng, N, D),
        "edges": rng.integers(N, size=(B, 40, 2)),
    }


@_architecture([{"message": (D, D), "own": (D, D)}] * 2, _graphs)
def graph_network(params, batch):
    def layer(h, edges, p):
        messages = jnp.tanh(h @ p["message"])[edges[:, 0]]
        return jnp.tanh(h @ p["own"] + jax.ops.segment_sum(messages, edges[:, 1], N) / 4)

    def one(h, edges):
        return functools.reduce(lambda h, p: layer(h, edges, p), params, h)

    return _squared(jax.vmap(one)(batch["x"], batch["edges"]), batch)


# Tables.


def _bags(rng):
    return {"items": rng.integers(V, size=(B, 6)), "y": _scaled(rng, D)}


@_architecture({"table": (V, 4), "out": (4, D)}, _bags)
def embedding_bag(params, batch):
    bag = jnp.mean(1000 * params["table"][batch["items"]], axis=1)
    return _squared(jnp.tanh(bag) @ params["out"], batch)


# Attention with a derivative of its own.

ATTENTION = {"qkv": (D, 3 * D), "out": (D, D)}
BLOCK = 4


def _attention(params, batch, attend):
    q, k, v = jnp.split(batch["x"] @ params["qkv"], 3, axis=-1)
    return _squared(attend(q / 4, k, v) @ params["out"], batch)


def _blocks(x):
    return jnp.moveaxis(x.reshape(x.shape[0], T // BLOCK, BLOCK, x.shape[-1]), 1, 0)


def _flash_forward(q, k, v):
    """Attention over blocks of keys, and the logarithm of its normaliser."""

    def step(carry, block):
        top, total, out = carry
        k, v = block
        scores = jnp.einsum("bqd,bkd->bqk", q, k)
        new_top = jnp.maximum(top, jnp.max(scores, -1, keepdims=True))
        weights = jnp.exp(scores - new_top)
        shrink = jnp.exp(top - new_top)
        total = shrink * total + jnp.sum(weights, -1, keepdims=True)
        return (new_top, total, shrink * out + jnp.einsum("bqk,bkd->bqd", weights, v)), None

    column = jnp.zeros_like(q[..., :1])
    (top, total, out), _ = lax.scan(
        step, (column - 1e4, column, jnp.zeros_like(v)), (_blocks(k), _blocks(v))
    )
    return out / total, top + jnp.log(total)


def _flash_backward(saved, g):
    q, k, v, out, normaliser = saved
    mean = jnp.sum(g * out, -1, keepdims=True)

    def step(dq, block):
        k, v = block
        weights = jnp.exp(jnp.einsum("bqd,bkd->bqk", q, k) - normaliser)
        dscores = weights * (jnp.einsum("bqd,bkd->bqk", g, v) - mean)
        dk = jnp.einsum("bqk,bqd->bkd", dscores, q)
        dv = jnp.einsum("bqk,bqd->bkd", weights, g)
        return dq + jnp.einsum("bqk,bkd->bqd", dscores, k), (dk, dv)

    dq, blocks = lax.scan(step, jnp.zeros_like(q), (_blocks(k), _blocks(v)))
    return dq, *(jnp.moveaxis(x, 0, 1).reshape(k.shape) for x in blocks)


@jax.custom_vjp
def flash(q, k, v):
    return _flash_forward(q, k, v)[0]


def _flash_saved(q, k, v):
    out, normaliser = _flash_forward(q, k, v)
    return out, (q, k, v, out, normaliser)


flash.defvjp(_flash_saved, _flash_backward)


@_architecture(ATTENTION, _sequences)
def flash_attention(params, batch):
    return _attention(params, batch, flash)


def _weights(q, k):
    scores = q @ k.T
    weights = jnp.exp(scores - jnp.max(scores, -1, keepdims=True))
    return weights / jnp.sum(weights, -1, keepdims=True)


def _attention_kernel(q, k, v, out):
    out[0] = _weights(q[0], k[0]) @ v[0]


def _gradient_kernel(q, k, v, g, dq, dk, dv):
    weights = _weights(q[0], k[0])
    dweights = g[0] @ v[0].T
    dscores = weights * (dweights - jnp.sum(weights * dweights, -1, keepdims=True))
    dq[0], dk[0], dv[0] = dscores @ k[0], dscores.T @ q[0], weights.T @ g[0]


def _by_kernel(kernel, outputs, *inputs):
    """One step of the grid per sequence."""
    block = pl.BlockSpec((1, *inputs[0].shape[1:]), lambda i: (i, 0, 0))
    out = [jax.ShapeDtypeStruct(inputs[0].shape, inputs[0].dtype)] * outputs
    return pl.pallas_call(
        kernel,
        out_shape=out,
        grid=(inputs[0].shape[0],),
        in_specs=[block] * len(inputs),
        out_specs=[block] * outputs,
        interpret=True,
    )(*inputs)


@jax.custom_vjp
def kernel_attend(q, k, v):
    return _by_kernel(_attention_kernel, 1, q, k, v)[0]


kernel_attend.defvjp(
    lambda q, k, v: (kernel_attend(q, k, v), (q, k, v)),
    lambda saved, g: tuple(_by_kernel(_gradient_kernel, 3, *saved, g)),
)


@_architecture(ATTENTION, _sequences)
def kernel_attention(params, batch):
    return _attention(params, batch, kernel_attend)


# Images.


def _convolve(x, kernel, stride=1):
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (stride,) * 2, "SAME", dimension_numbers=layout)


def _block(x, p):
    x = _convolve(x, p["kernel"]) + p["b"][None, None, None]
    groups = x.reshape(*x.shape[:3], 2, -1)
    groups = groups - jnp.mean(groups, (1, 2, 4), keepdims=True)
    groups = groups * lax.rsqrt(jnp.mean(groups**2, (1, 2, 4), keepdims=True) + 1e-3)
    return jnp.tanh(groups.reshape(x.shape) * p["scale"][None, None, None])


def _conv(d, k):
    return {"kernel": (3, 3, d, k), "b": (k,), "scale": (k,)}


C = 8  # channels
UNET = {
    "first": _conv(2, C),
    "down": (3, 3, C, 2 * C),
    "middle": _conv(2 * C, 2 * C),
    "up": (3, 3, 2 * C, C),
    "last": _conv(2 * C, C),
    "out": (1, 1, C, 2),
}


def _images(rng):
    return {"x": _scaled(rng, 16, 16, 2), "y": _scaled(rng, 16, 16, 2)}


@_architecture(UNET, _images)
def unet(params, batch):
    fine = _block(batch["x"], params["first"])
    coarse = _block(_convolve(fine, params["down"], 2), params["middle"])
    larger = jnp.repeat(jnp.repeat(coarse, 2, axis=1), 2, axis=2)
    joined = jnp.concatenate([fine, _convolve(larger, params["up"])], axis=-1)
    return _squared(_convolve(_block(joined, params["last"]), params["out"]), batch)
