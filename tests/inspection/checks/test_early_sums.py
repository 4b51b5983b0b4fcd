"""Norms of single examples, before and after a sum over shards."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P
from meshes import GRID, LINE, on

import bevel
from bevel.inspection.checks.early_sums import early_sums
from bevel.inspection.compiled_step import Limits, compile_step


def loss(w, x):
    return jnp.sum(jnp.tanh(x @ w) ** 2)


def clipped(w, x, squares):
    grads = jax.vmap(jax.grad(loss), (None, 0))(w, x)
    norms = jnp.sqrt(squares(grads))
    return jnp.einsum("b,bij->ij", jnp.minimum(1.0, 1.0 / norms), grads)


WAYS = {
    "power": lambda g: jnp.sum(g**2, axis=(1, 2)),
    "product": lambda g: jnp.sum(g * g, axis=(1, 2)),
    "einsum": lambda g: jnp.einsum("bij,bij->b", g, g),
    "flat": lambda g: jnp.sum(jnp.square(g.reshape(g.shape[0], -1)), axis=1),
    "norm": lambda g: jax.vmap(lambda g: optax.tree.norm(g) ** 2)(g),
    "in a jit": lambda g: jax.jit(lambda g: jnp.sum(g**2, axis=(1, 2)))(g),
}


def per_shard(body, mesh=LINE, **options):
    def step(w, x):
        mapped = jax.shard_map(body, mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), **options)
        return mapped(w, x)

    return step


def found(step, mesh=LINE):
    args = on(mesh, (3, 2)), on(mesh, (16, 3), "data")
    return list(early_sums(compile_step(step, args, {}, None, 0, Limits())))


@pytest.mark.parametrize("way", WAYS)
def test_norms_of_summed_gradients_are_errors(way):
    def body(w, x):
        return jax.lax.psum(clipped(w, x, WAYS[way]), "data")

    (error,) = found(per_shard(body))
    assert error.severity == "error" and "over data" in error.what
    assert "to='varying'" in error.fix
    assert error.line.file == __file__


@pytest.mark.parametrize("way", WAYS)
def test_norms_of_each_shards_own_gradients_are_fine(way):
    def body(w, x):
        return jax.lax.psum(clipped(jax.lax.pcast(w, "data", to="varying"), x, WAYS[way]), "data")

    assert found(per_shard(body)) == []


def test_the_error_is_real():
    rng = np.random.default_rng(0)
    w, x = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((3, 2), (16, 3)))

    def norms(w, x):
        return WAYS["power"](jax.vmap(jax.grad(loss), (None, 0))(w, x)) ** 0.5

    wrong = jax.shard_map(norms, mesh=LINE, in_specs=(P(), P("data")), out_specs=P())(w, x)
    right = norms(w, x)
    assert wrong.shape == (2,) and not np.isclose(right, wrong[0], rtol=1e-3).any()


def test_a_sum_of_per_example_gradients_by_hand():
    def body(w, x):
        w = jax.lax.pcast(w, "data", to="varying")
        grads = jax.lax.pmean(jax.vmap(jax.grad(loss), (None, 0))(w, x), "data")
        return jnp.sum(grads * jax.lax.rsqrt(WAYS["power"](grads))[:, None, None], axis=0)

    assert len(found(per_shard(body))) == 1


def test_clipped_grad_is_fine():
    private = bevel.clipped_grad(
        lambda w, x: loss(w, x), l2_clip_norm=1.0, batch_argnums=1, reduce_axes=("data",)
    )
    assert found(per_shard(private)) == []


def test_the_norm_of_the_whole_gradient_is_fine():
    def body(w, x):
        grads = jax.grad(loss)(w, x)  # summed over shards, as it should be
        rows = jnp.sum(grads**2, axis=1)
        return grads / jnp.maximum(1.0, jnp.sqrt(jnp.sum(rows)))

    assert found(per_shard(body)) == []


def test_sums_over_an_axis_without_examples_are_fine():
    def step(w, x):
        def body(w, x):
            y = jax.lax.psum(x @ w, "model")
            return y * jax.lax.rsqrt(jnp.sum(y**2, axis=1, keepdims=True))

        specs = (P("model"), P("data", "model"))
        return jax.shard_map(body, mesh=GRID, in_specs=specs, out_specs=P("data"))(w, x)

    args = on(GRID, (4, 2), "model"), on(GRID, (16, 4), "data", "model")
    assert list(early_sums(compile_step(step, args, {}, None, 0, Limits()))) == []
