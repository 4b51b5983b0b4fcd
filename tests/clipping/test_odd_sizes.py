"""Matrices with sides that matrix units do not take as they are: gradients of padded products."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from clipping.test_choose import chosen, of
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from oracle import clipped_sum

import bevel
from bevel.clipping import choose
from bevel.clipping.norms import outer_products
from bevel.clipping.norms.costs import cost
from bevel.clipping.norms.registry import GradientSizes
from bevel.errors import FixArgumentsError

B, T, D, V = 4, 3, 5, 27
rng = np.random.default_rng(0)
TOKENS = rng.integers(0, V, size=(B, T)).astype(np.int32)
TOKENS[1] = TOKENS[1, 0]  # one word, several times
VALUES = rng.normal(size=(B, T, D)).astype(np.float32)


def tied(w, tokens):
    return jnp.mean(jax.nn.logsumexp(jnp.tanh(w[tokens]) @ w.T, axis=-1) ** 2)


def tied_in_columns(w, tokens):
    return tied(w.T, tokens)


def two_heads(w, tokens):
    h = jnp.sin(w[tokens])
    return jnp.sum(jnp.tanh(h @ w.T) ** 2) + jnp.sum(jnp.cos(2 * h) @ w.T)


def head(w, x):
    return jnp.sum(jnp.tanh(x @ w) ** 2)


def head_on_the_left(w, x):
    return jnp.sum(jnp.tanh(jnp.einsum("vd,btd->vbt", w, x)) ** 2)


def recurrent(w, x):
    h0 = jnp.concatenate([x[:, 0]] * (V // D) + [x[:, 0, : V % D]], axis=1)
    h, _ = jax.lax.scan(lambda h, _: (jnp.tanh(h @ w), None), h0, None, length=3)
    return jnp.sum(h**2)


# The loss, the shape of the matrix, the batch.
CASES = {
    "tied": (tied, (V, D), TOKENS),
    "tied, in columns": (tied_in_columns, (D, V), TOKENS),
    "looked up, and used twice": (two_heads, (V, D), TOKENS),
    "a head": (head, (D, V), VALUES),
    "a head on the left": (head_on_the_left, (V, D), VALUES),
    "both sides": (recurrent, (V, V), VALUES),
}


def matrix(shape):
    return (0.5 * np.random.default_rng(1).normal(size=shape)).astype(np.float32)


@pytest.fixture(autouse=True)
def on_one_device(monkeypatch):
    """As in a process that has one; small sizes are long."""
    monkeypatch.setattr(choose, "on_one_device", lambda: True)
    monkeypatch.setattr(outer_products, "SHORTEST_PADDED", 16)


@pytest.mark.parametrize("name", CASES)
def test_the_sum_of_clipped_gradients(name):
    loss, shape, batch = CASES[name]
    w = matrix(shape)
    for clip_norm in (0.1, 100.0):
        truth = clipped_sum(loss, w, batch, clip_norm=clip_norm)
        found = jax.jit(bevel.clipped_grad(loss, l2_clip_norm=clip_norm, norms="form"))(w, batch)
        np.testing.assert_allclose(found, truth.grad, atol=2e-4 * np.max(np.abs(truth.grad)))


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_is_formed_once_with_zeros_behind(name):
    loss, shape, batch = CASES[name]
    fn = bevel.clipped_grad(loss, l2_clip_norm=1.0, norms="form")
    program = str(jax.make_jaxpr(fn)(matrix(shape), batch))
    padded = ",".join(str(-(-size // 8) * 8 if size >= 16 else size) for size in shape)
    assert f"f32[{B},{padded}]" in program and f"f32[{B},{shape[0]},{shape[1]}]" not in program


def test_in_bfloat16_it_is_what_jax_forms():
    def loss(w, tokens):
        return tied(w.astype(jnp.bfloat16), tokens).astype(jnp.float32)

    w = matrix((V, D))
    formed, kept = (
        jax.jit(bevel.clipped_grad(loss, l2_clip_norm=0.1, norms=way))(w, TOKENS)
        for way in ("form", "keep")
    )
    assert formed.dtype == np.float32
    assert np.linalg.norm(formed - kept) <= 1e-2 * np.linalg.norm(kept)
    fn = bevel.clipped_grad(loss, l2_clip_norm=0.1, norms="form")
    assert f"bf16[{B},32,{D}]" in str(jax.make_jaxpr(fn)(w, TOKENS))  # held in two bytes a number


def test_examples_that_are_no_numbers_and_padding_add_nothing():
    values = np.array(VALUES)
    values[1], values[2] = np.nan, np.inf
    padding = np.arange(B) == 3
    w = matrix((D, V))
    truth = clipped_sum(head, w, values, clip_norm=0.1, padding=padding)
    fn = bevel.clipped_grad(head, l2_clip_norm=0.1, norms="form")
    found = jax.jit(fn)(w, values, is_padding_example=padding)
    np.testing.assert_allclose(found, truth.grad, atol=2e-4 * np.max(np.abs(truth.grad)))


def test_inside_shard_map():
    kinds = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((2,), ("data",), axis_types=kinds, devices=jax.devices()[:2])
    fn = bevel.clipped_grad(tied, l2_clip_norm=0.1, norms="form")

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())
    def step(w, tokens):
        return jax.lax.psum(fn(w, tokens), "data")

    w = matrix((V, D))
    truth = clipped_sum(tied, w, TOKENS, clip_norm=0.1)
    np.testing.assert_allclose(jax.jit(step)(w, TOKENS), truth.grad, atol=1e-4)


def test_inside_shard_map_of_a_matrix_in_pieces():
    kinds = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=kinds, devices=jax.devices()[:4])
    w = matrix((D, 2 * V))
    fn = bevel.clipped_grad(
        lambda w, x: jax.lax.psum(head(w, x), "model"), l2_clip_norm=0.1, norms="form"
    )

    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(P(None, "model"), P("data")), out_specs=P(None, "model")
    )
    def step(w, x):
        return jax.lax.psum(fn(w, x), "data")

    truth = clipped_sum(head, w, VALUES, clip_norm=0.1)
    np.testing.assert_allclose(jax.jit(step)(w, VALUES), truth.grad, atol=1e-4)


def test_in_microbatches_and_by_groups():
    params = {"head": matrix((D, V)), "scale": np.float32(1.5)}

    def loss(params, x):
        return params["scale"] * head(params["head"], x)

    clip_norms = {"head": 0.1, "scale": 0.2}
    fn = bevel.clipped_grad(loss, l2_clip_norm=clip_norms, norms="form", microbatch_size=2)
    found = jax.jit(fn)(params, VALUES)
    truth = clipped_sum(loss, params, VALUES, clip_norm=clip_norms)
    for name, expected in truth.grad.items():
        np.testing.assert_allclose(found[name], expected, atol=1e-4, err_msg=name)


def test_on_an_explicit_mesh_of_one_device():
    kinds = (jax.sharding.AxisType.Explicit,) * 2
    mesh = jax.make_mesh((1, 1), ("data", "model"), axis_types=kinds, devices=jax.devices()[:1])
    w = matrix((D, V))
    split = jax.device_put(w, NamedSharding(mesh, P(None, "model")))
    rows = jax.device_put(VALUES, NamedSharding(mesh, P("data")))
    with jax.set_mesh(mesh):
        found = jax.jit(bevel.clipped_grad(head, l2_clip_norm=0.1, norms="form"))(split, rows)
    truth = clipped_sum(head, w, VALUES, clip_norm=0.1)
    np.testing.assert_allclose(found, truth.grad, atol=1e-4)
    assert jax.typeof(found).sharding.spec == P(None, "model")


def test_a_gpu_forms_what_is_odd_and_long(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(outer_products, "SHORTEST_PADDED", 1024)
    example = of(1, 512, dtype=jnp.int32)
    assert chosen(tied, of(50257, 768, dtype=jnp.bfloat16), example).way == "form"
    assert chosen(tied, of(50264, 768, dtype=jnp.bfloat16), example).way == "keep"
    assert "form" not in chosen(tied, of(50264, 768, dtype=jnp.bfloat16), example).costs
    assert chosen(tied, of(999, 768, dtype=jnp.bfloat16), example).way == "keep"
    monkeypatch.setattr(choose, "on_one_device", lambda: False)  # a mesh may have cut it
    assert chosen(tied, of(50257, 768, dtype=jnp.bfloat16), example).way == "keep"


def test_elsewhere_it_is_kept_as_it_is():
    example = of(1, 512, dtype=jnp.int32)
    assert chosen(tied, of(1031, 64, dtype=jnp.bfloat16), example).way != "form"
    assert cost("form", GradientSizes(1, 16, 64, 33), 4).time(4) > cost(
        "keep", GradientSizes(1, 16, 64, 33), 4
    ).time(4)


def part_kernel(w, batch):
    x, images = batch
    kernel = w[V:].reshape(3, 3, 2, D)
    dimensions = ("NHWC", "HWIO", "NHWC")
    y = jax.lax.conv_general_dilated(images, kernel, (1, 1), "SAME", dimension_numbers=dimensions)
    return head(w[:V], x) + jnp.sum(jnp.tanh(y) ** 2)


def test_a_parameter_that_is_part_matrix_and_part_kernel(monkeypatch):
    w, images = matrix((V + 18, D)), rng.normal(size=(B, 4, 4, 2)).astype(np.float32)
    batch = rng.normal(size=(B, T, V)).astype(np.float32), images
    truth = clipped_sum(part_kernel, w, batch, clip_norm=0.1)
    fn = bevel.clipped_grad(part_kernel, l2_clip_norm=0.1, norms="form")
    np.testing.assert_allclose(jax.jit(fn)(w, batch), truth.grad, atol=1e-4)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    example = jax.tree.map(lambda x: x[:1], batch)
    assert "form" not in chosen(part_kernel, of(*w.shape), example).costs


def test_a_loop_around_a_matrix_changes_nothing_of_that():
    example = of(1, T, D)
    costs = chosen(recurrent, of(V, V), example).costs
    assert costs["form"].time(4) > costs["keep"].time(4)


def test_only_a_whole_matrix_is_formed():
    half = lambda w, x: head(w[:, : V - 4], x)  # noqa: E731
    with pytest.raises(FixArgumentsError, match="not possible there"):
        bevel.clipped_grad(half, l2_clip_norm=1.0, norms={"": "form"})(matrix((D, V)), VALUES)
