"""Models of token sequences: a bag of embeddings, a small transformer, and a linear model."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from bevel.datasets import DataSpec
from bevel.models.layers import affine, layer_norm, norm_parameters, weights, zero_weights
from bevel.models.model import Model
from bevel.models.objective import output_shape, output_size

PyTree = Any


def text(data: DataSpec, depth: int | None, width: int | None) -> Model:
    """Embeddings of tokens and positions, and `depth` transformer blocks.

    Without blocks it is a bag of embeddings: a dense layer of their mean. This is the default where
    one output is predicted per sequence, because it has few parameters to add noise to. For the
    next token, the default is one block, with causal attention. The width is 32 by default, and 64
    for more than 1,000 tokens.

    Padding tokens are left out of the mean and of attention.
    """
    per_position = data.target == "next token"
    depth = int(per_position) if depth is None else depth
    width = (32 if (data.vocabulary or 0) <= 1000 else 64) if width is None else width
    length, vocabulary = data.shape[0], data.vocabulary or 1

    def init(key: jax.Array) -> PyTree:
        keys = iter(jax.random.split(key, 2 + 4 * depth))
        embedding = jax.random.normal(next(keys), (vocabulary, width), jnp.float32)
        position = jax.random.normal(next(keys), (length, width), jnp.float32) * 0.1
        params = {"embedding": embedding, "out": zero_weights((width, output_size(data)))}
        if depth:
            blocks = [_block(keys, width) for _ in range(depth)]
            params |= {"position": position, "blocks": blocks, "norm": norm_parameters(width)}
        return params

    def predict(params: PyTree, x: jax.Array) -> jax.Array:
        h = params["embedding"][x]
        is_token = _is_token(data, x)
        if depth:
            h = h + jnp.broadcast_to(params["position"], h.shape)
            for block in params["blocks"]:
                h = _apply(block, h, is_token, causal=per_position)
            h = layer_norm(params["norm"], h)
        if not per_position:
            h = _mean(h, is_token)
        return affine(params["out"], h).reshape(output_shape(data, len(x)))

    return Model(init, predict)


def linear_text(data: DataSpec) -> Model:
    """Linear in the frequency of each token, or for the next token, in the token before it."""
    vocabulary = data.vocabulary or 1

    def init(key: jax.Array) -> PyTree:
        return zero_weights((vocabulary, output_size(data)))

    def predict(params: PyTree, x: jax.Array) -> jax.Array:
        h = params["w"][x]
        if data.target != "next token":
            h = _mean(h, _is_token(data, x))
        return (h + jnp.broadcast_to(params["b"], h.shape)).reshape(output_shape(data, len(x)))

    return Model(init, predict)


def _is_token(data: DataSpec, x: jax.Array) -> jax.Array:
    return jnp.ones(x.shape, bool) if data.padding is None else x != data.padding


def _mean(h: jax.Array, is_token: jax.Array) -> jax.Array:
    """The mean over the positions (B, T, D) that are tokens. Without tokens it is zero."""
    weight = is_token.astype(h.dtype)
    total = (h * jnp.broadcast_to(weight[..., None], h.shape)).sum(1)
    count = jnp.maximum(weight.sum(1), jnp.ones((), h.dtype))
    return total / jnp.broadcast_to(count[:, None], total.shape)


def _block(keys: Any, width: int) -> PyTree:
    return {
        "norm1": norm_parameters(width),
        "attention_in": weights(next(keys), (width, 3 * width)),
        "attention_out": weights(next(keys), (width, width)),
        "norm2": norm_parameters(width),
        "dense_in": weights(next(keys), (width, 2 * width)),
        "dense_out": weights(next(keys), (2 * width, width)),
    }


def _apply(block: PyTree, h: jax.Array, is_token: jax.Array, causal: bool) -> jax.Array:
    """A transformer block with one attention head, normalised before each part."""
    length, width = h.shape[1:]
    parts = affine(block["attention_in"], layer_norm(block["norm1"], h))
    query, key, value = jnp.split(parts, 3, axis=-1)
    scores = jnp.einsum("btd,bsd->bts", query, key) / math.sqrt(width)
    allowed = jnp.broadcast_to(is_token[:, None, :], scores.shape)
    if causal:
        allowed &= jnp.broadcast_to(jnp.tril(jnp.ones((length, length), bool)), scores.shape)
    # Every position sees itself, so none is left without anything to attend to.
    allowed |= jnp.broadcast_to(jnp.eye(length, dtype=bool), scores.shape)
    share = jax.nn.softmax(jnp.where(allowed, scores, -jnp.inf), axis=-1)
    h = h + affine(block["attention_out"], jnp.einsum("bts,bsd->btd", share, value))
    inner = jax.nn.gelu(affine(block["dense_in"], layer_norm(block["norm2"], h)))
    return h + affine(block["dense_out"], inner)
