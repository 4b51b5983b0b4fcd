"""The table of what was chosen, against what the program does."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import bevel
from bevel.clipping.explain import products, short
from bevel.errors import FixArgumentsError

B, T, D, K, V = 4, 3, 24, 40, 50


def draw(*shape):
    return jnp.asarray(np.random.default_rng(shape).normal(size=shape), jnp.float32)


PARAMS = {"head": {"w": draw(D, K), "b": draw(K)}, "table": draw(V, D)}
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, V, (B, T)))


def loss(params, tokens):
    h = jnp.tanh(params["table"][tokens])
    y = h @ params["head"]["w"] + params["head"]["b"][None, None]
    return jnp.mean(y**2)


def rows_of(explanation):
    return {row.path.split("[", 1)[1]: row for row in explanation.rows}


def test_there_is_a_row_for_every_parameter_with_its_uses():
    rows = rows_of(bevel.explain(bevel.clipped_grad(loss, l2_clip_norm=1.0), PARAMS, TOKENS))
    assert {name: row.uses for name, row in rows.items()} == {
        "'head']['b']": "by JAX",
        "'head']['w']": "1 dense",
        "'table']": "1 lookup",
    }
    assert rows["'head']['w']"].shape == (D, K) and rows["'head']['w']"].dtype == "float32"


def test_nothing_is_computed():
    types = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (PARAMS, TOKENS))
    explained = bevel.explain(bevel.clipped_grad(loss, l2_clip_norm=1.0), *types)
    assert len(explained.rows) == 3 and explained.batch_size == B


@pytest.mark.parametrize("way", ["gram", "product", "keep"])
def test_what_is_asked_for_is_taken_and_gives_the_same(way):
    plain = bevel.clipped_grad(loss, l2_clip_norm=0.1)(PARAMS, TOKENS)
    fn = bevel.clipped_grad(loss, l2_clip_norm=0.1, norms={"'w'": way})
    row = rows_of(bevel.explain(fn, PARAMS, TOKENS))["'head']['w']"]
    assert (row.way, row.why) == (way, "asked for")
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, 2e-3, 1e-6), fn(PARAMS, TOKENS), plain
    )


def test_a_way_for_all_is_taken_where_it_can_be():
    fn = bevel.clipped_grad(loss, l2_clip_norm=1.0, norms="gram")
    ways = {name: row.way for name, row in rows_of(bevel.explain(fn, PARAMS, TOKENS)).items()}
    assert ways == {"'head']['b']": "keep", "'head']['w']": "gram", "'table']": "gram"}


@pytest.mark.parametrize(
    "norms, message",
    [
        ("fastest", "norms has 'fastest': write 'auto', or one of"),
        ({"'w'": "ghost"}, "norms has 'ghost'"),
        ({"'wte'": "gram"}, "names \"'wte'\", but no parameter has that in its path"),
        ({"'table'": "product"}, "not possible there: write one of gram, keep"),
        ({"'b'": "gram"}, "not possible there .a use without a rule.: write one of keep"),
    ],
)
def test_a_way_that_cannot_be_taken_is_refused(norms, message):
    with pytest.raises(FixArgumentsError, match=message):
        bevel.clipped_grad(loss, l2_clip_norm=1.0, norms=norms)(PARAMS, TOKENS)


def test_a_memory_mode_that_is_none_is_refused():
    with pytest.raises(FixArgumentsError, match="memory='high': write 'auto'"):
        bevel.clipped_grad(loss, l2_clip_norm=1.0, memory="high")


def test_memory_modes_give_the_same_and_show():
    low = bevel.clipped_grad(loss, l2_clip_norm=0.1, norms={"'w'": "gram"}, memory="low")
    held = bevel.clipped_grad(loss, l2_clip_norm=0.1, norms={"'w'": "gram"}, memory="bookkeeping")
    modes = [rows_of(bevel.explain(f, PARAMS, TOKENS))["'head']['w']"].memory for f in (low, held)]
    assert modes == ["recomputed", "held"]
    results = low(PARAMS, TOKENS), held(PARAMS, TOKENS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-4, 1e-7), *results)


@pytest.mark.parametrize(
    "option", [{"pre_clipping_transform": lambda g: g["head"]}, {"engine": "vmap"}]
)
@pytest.mark.parametrize("norms", ["auto", {"'w'": "gram"}])
def test_a_transform_keeps_every_gradient(option, norms):
    fn = bevel.clipped_grad(loss, l2_clip_norm=1.0, norms=norms, **option)
    assert {row.way for row in bevel.explain(fn, PARAMS, TOKENS).rows} == {"keep"}
    fn(PARAMS, TOKENS)


def test_the_place_of_a_parameter_is_shown():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    place = NamedSharding(mesh, PartitionSpec(None, "data"))
    head = PARAMS["head"] | {"w": jax.device_put(PARAMS["head"]["w"], place)}
    rows = rows_of(
        bevel.explain(bevel.clipped_grad(loss, l2_clip_norm=1.0), PARAMS | {"head": head}, TOKENS)
    )
    assert "data" in rows["'head']['w']"].sharding and rows["'table']"].sharding == "-"


def test_the_table_prints_totals_and_what_the_compiler_says():
    fn = bevel.clipped_grad(loss, l2_clip_norm=1.0, memory="bookkeeping")
    explained = bevel.explain(fn, PARAMS, TOKENS, compile=True)
    lines = str(explained).splitlines()
    assert lines[0].split()[:5] == ["parameter", "shape", "dtype", "uses", "norm"]
    assert f"batch of {B}" in lines[5] and "times those of jax.grad" in lines[5]
    narrow = explained.text(60)
    assert max(map(len, narrow.splitlines())) <= 60 and narrow.count("parameter") > 1
    assert json.loads(json.dumps(explained.to_dict()))["batch_size"] == B
    assert set(explained.compiled) == {"jax.grad", "clipped_grad"}
    assert all(found.peak >= found.temporary > 0 for found in explained.compiled.values())
    for name, found in explained.compiled.items():
        assert explained.peaks[name] == pytest.approx(found.peak, rel=0.3)
        assert f"estimated {name}: {short(explained.peaks[name])}B at the peak" in lines


def test_the_peak_is_estimated_without_arrays_and_with_python_values():
    def scaled(params, tokens, how):
        return loss(params, tokens) if how == "plain" else 2 * loss(params, tokens)

    fn = bevel.clipped_grad(scaled, l2_clip_norm=1.0)
    types = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (PARAMS, TOKENS))
    peaks = bevel.explain(fn, *types, "twice").peaks
    assert peaks == bevel.explain(fn, PARAMS, TOKENS, "twice", compile=True).peaks
    arguments = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves((PARAMS, TOKENS)))
    assert peaks["clipped_grad"] >= peaks["jax.grad"] > arguments


def test_a_loss_for_a_batch_of_one_has_no_jax_grad_beside_it():
    def only_one(params, tokens):
        (words,) = tokens
        return loss(params, words[None])

    explained = bevel.explain(bevel.clipped_grad(only_one, l2_clip_norm=1.0), PARAMS, TOKENS)
    assert set(explained.peaks) == {"clipped_grad"}


def test_no_peak_is_estimated_where_devices_share_the_arguments():
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
    tokens = jax.device_put(TOKENS, NamedSharding(mesh, PartitionSpec("data")))
    explained = bevel.explain(bevel.clipped_grad(loss, l2_clip_norm=1.0), PARAMS, tokens)
    assert explained.peaks == {} and "estimated" not in str(explained)


def test_only_clipped_grad_can_be_explained():
    fn = bevel.clipped_fun(lambda x: x.sum(0))
    for wrong in (fn, jax.grad(loss)):
        with pytest.raises(FixArgumentsError, match="explain needs the result of clipped_grad"):
            bevel.explain(wrong, PARAMS, TOKENS)


def test_a_ragged_product_counts_every_row_for_every_group():
    def loss(w, x, sizes):
        return jnp.sum(jax.lax.ragged_dot(x, w, sizes) ** 2)

    args = draw(5, D, K), draw(T, D), jnp.array([1, 1, 0, 0, 1])
    one = 5 * 2 * T * D * K
    assert products(jax.make_jaxpr(loss)(*args)) == one
    assert products(jax.make_jaxpr(jax.grad(loss, (0, 1)))(*args)) == 3 * one


def test_the_products_of_a_kernel_are_counted_for_every_step_of_its_grid():
    def kernel(x, y):
        y[...] = x[...] @ x[...]

    def squares(x):
        block = pl.BlockSpec((1, D, D), lambda i: (i, 0, 0))
        out = jax.ShapeDtypeStruct(x.shape, x.dtype)
        call = pl.pallas_call(
            kernel, out, grid=(T,), in_specs=[block], out_specs=block, interpret=True
        )
        return call(x)

    assert products(jax.make_jaxpr(squares)(draw(T, D, D))) == T * 2 * D**3


def test_products_are_counted_through_loops_and_branches():
    w = draw(D, D)

    def looped(x):
        y = jax.lax.scan(lambda c, _: (c @ w, None), x, None, length=5)[0]
        return jax.lax.cond(y.sum() > 0, lambda: y @ w, lambda: y)

    assert products(jax.make_jaxpr(looped)(draw(2, D))) == 6 * 2 * 2 * D * D
    kernel, image = draw(3, 3, 2, 4), draw(1, 6, 6, 2)
    names = ("NHWC", "HWIO", "NHWC")
    program = jax.make_jaxpr(
        lambda x: jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=names)
    )(image)
    assert products(program) == 2 * 36 * 4 * 18


def test_numbers_are_short():
    assert [short(x) for x in (0, 999, 1234, 5.6e9, 1e18)] == [
        "0",
        "999",
        "1.23k",
        "5.6G",
        "1e+03P",
    ]
