"""On one device: small leaves measured together, sums in other stages, gradients row by row."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from oracle import clipped_sum

import bevel
from bevel.clipping.accumulate import example_gradients
from bevel.clipping.norms import materialised, weighting

B = 6
SHAPES = {"w": (24, 80), "tall": (80, 24), "b": (80,), "c": (24,), "gain": (), "none": (0,)}
rng = np.random.default_rng(0)
PARAMS = {n: (0.3 * rng.normal(size=s)).astype(np.float32) for n, s in SHAPES.items()}
BATCH = rng.normal(size=(B, 24)).astype(np.float32)


def loss(params, x):
    hidden = jnp.tanh(x @ params["w"] + params["b"][None])
    y = hidden @ params["tall"] * params["gain"] + params["c"][None]
    return jnp.mean(jnp.sum(y * y * jnp.exp(x), axis=1)) + jnp.sum(params["none"])


@pytest.fixture(autouse=True)
def one_device(monkeypatch):
    """As in a process that has one: arrays of these tests lie on the first of several."""
    for module in (example_gradients, materialised, weighting):
        monkeypatch.setattr(module, "on_one_device", lambda: True)
    cached = (
        materialised.materialised_norm,
        materialised.sum_of_squares,
        weighting.weighted_rows_of,
    )
    for function in cached:
        function.clear_cache()
    yield
    for function in cached:
        function.clear_cache()


def sums(batch, clip_norm, padding=None, **options):
    fn = bevel.clipped_grad(loss, l2_clip_norm=clip_norm, **options)
    return jax.jit(fn)(PARAMS, batch, is_padding_example=padding)


def assert_equals_oracle(batch, clip_norm, padding=None, norms="keep"):
    truth = clipped_sum(loss, PARAMS, batch, clip_norm=clip_norm, padding=padding)
    found = sums(batch, clip_norm, padding, norms=norms)
    for name, expected in truth.grad.items():
        scale = np.max(np.abs(expected), initial=1e-30)
        np.testing.assert_allclose(found[name] / scale, expected / scale, atol=2e-4, err_msg=name)


def scaled(row, factor):
    return np.where(np.arange(B)[:, None] == row, np.float32(factor), BATCH)


CASES = {
    "as it is": BATCH,
    "an example that is not a number": scaled(2, np.nan),
    "an infinite example": scaled(0, np.inf),
    "an example whose squares overflow": scaled(3, 60.0),
    "an example whose squares vanish": scaled(1, -60.0),
}


@pytest.mark.parametrize("norms", ["keep", "auto"])
@pytest.mark.parametrize("name", CASES)
def test_the_sum_of_clipped_gradients(name, norms):
    assert_equals_oracle(CASES[name], clip_norm=1.0, norms=norms)


def test_groups_are_not_measured_together():
    clip_norms = {"w": 0.5, "tall": 0.2, "b": 0.1, "c": 2.0, "gain": 0.3, "none": 1.0}
    assert_equals_oracle(BATCH, clip_norms)
    assert_equals_oracle(CASES["an example that is not a number"], clip_norms)


def test_padding():
    padding = np.arange(B) >= 4
    assert_equals_oracle(scaled(5, np.nan), 1.0, padding)
    assert_equals_oracle(BATCH, 1.0, padding)


def test_the_sums_can_be_differentiated():
    def total(scale, clipped):
        return jnp.sum(jnp.sin(clipped(scale * BATCH)["w"]))

    def plainly(batch):
        result = jax.tree.map(jnp.zeros_like, PARAMS)
        for x in batch:
            g = jax.grad(loss)(PARAMS, x[None])
            norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(g)))
            result = jax.tree.map(lambda r, x, n=norm: r + x / jnp.maximum(n, 1.0), result, g)
        return result

    gradient = jax.jit(jax.grad(total), static_argnums=1)
    expected = gradient(1.1, plainly)
    found = gradient(1.1, lambda batch: sums(batch, 1.0, norms="keep"))
    np.testing.assert_allclose(found, expected, rtol=1e-3)


def test_small_leaves_are_measured_together():
    """One sum of squares for all of them, where a mesh has one for each."""

    def measured(text):
        return text.count("name=materialised_norm")

    program = jax.make_jaxpr(lambda x: sums(x, 1.0, norms="keep"))(BATCH)
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setattr(example_gradients, "on_one_device", lambda: False)
        apart = jax.make_jaxpr(lambda x: sums(x, 2.0, norms="keep"))(BATCH)
    small = [
        n
        for n, s in SHAPES.items()
        if B * math.prod(s) <= example_gradients.one_pass_threshold() // 8
    ]
    assert len(small) == 4
    assert measured(str(apart)) - measured(str(program)) == len(small) - 1


def test_taps_and_kept_gradients_have_coefficients_of_their_own():
    """Else a GPU's compiler puts sums and scaled values into one slow kernel."""

    def squares(w, x):
        return jnp.sum(jnp.tanh(x @ w) ** 2)

    fn = bevel.clipped_grad(squares, l2_clip_norm=1.0, norms="outer")
    program = str(jax.make_jaxpr(fn)(PARAMS["w"], BATCH))
    assert re.search(rf":f32\[{B}\] = optimization_barrier", program)


LAYERS = 4


def stacked_loss(params, x):
    out, _ = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, params["layers"])
    return jnp.sum(out**2)


def test_layers_that_a_scan_stacked_are_put_in_order_once():
    """Example by example, before the norm: neither norm nor sum moves them again."""
    params = {"layers": (0.3 * rng.normal(size=(LAYERS, 24, 24))).astype(np.float32)}
    fn = bevel.clipped_grad(stacked_loss, l2_clip_norm=1.0, norms="keep")
    program = jax.jit(fn).lower(params, BATCH).compile()
    truth = clipped_sum(stacked_loss, params, BATCH, clip_norm=1.0).grad
    np.testing.assert_allclose(program(params, BATCH)["layers"], truth["layers"], atol=2e-4)
    given = re.findall(rf"f32\[{B},{LAYERS},24,24\]{{([\d,]+)}}.* parameter\(", program.as_text())
    assert given and set(given) == {"3,2,1,0"}


def test_an_explicit_mesh_of_one_device():
    kinds = (jax.sharding.AxisType.Explicit,) * 2
    mesh = jax.make_mesh((1, 1), ("data", "model"), axis_types=kinds, devices=jax.devices()[:1])

    def squares(params, x):
        return jnp.sum(jnp.tanh(x @ params["w"]) ** 2)

    params = {"w": PARAMS["w"]}
    split = jax.device_put(params, NamedSharding(mesh, P(None, "model")))
    rows = jax.device_put(BATCH, NamedSharding(mesh, P("data")))
    fn = bevel.clipped_grad(squares, l2_clip_norm=1.0, norms="keep")
    with jax.set_mesh(mesh):
        found = jax.jit(fn)(split, rows)["w"]
    truth = clipped_sum(squares, params, BATCH, clip_norm=1.0).grad["w"]
    np.testing.assert_allclose(found, truth, atol=2e-4)
    assert jax.typeof(found).sharding.spec == P(None, "model")
