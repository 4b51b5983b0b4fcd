"""Built-in models fit their data, start at equal outputs, and never mix examples."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model_specs import IMAGES, NEXT, SPECS, TABLE, TOKENS, records

from bevel.clipping import clipped_grad
from bevel.errors import FixArgumentsError
from bevel.models import ModelTable, build
from bevel.models.objective import output_shape

MODELS = [
    (IMAGES, ModelTable()),
    (IMAGES, ModelTable("linear")),
    (IMAGES, ModelTable("mlp", widths=(4, 6))),
    (IMAGES, ModelTable("resnet")),
    (TABLE, ModelTable()),
    (SPECS["numbers"], ModelTable()),
    (TOKENS, ModelTable()),
    (TOKENS, ModelTable("text", depth=1, width=8)),
    (TOKENS, ModelTable("linear")),
    pytest.param(NEXT, ModelTable(), marks=pytest.mark.fast),
    (NEXT, ModelTable("linear")),
]


@pytest.mark.parametrize(("spec", "table"), MODELS)
def test_outputs_begin_at_zero_and_examples_do_not_mix(spec, table):
    built = build(table, spec)
    x = records(spec, 4)["x"]
    params = built.init()
    predict = jax.jit(built.predict)
    np.testing.assert_array_equal(predict(params, x), np.zeros(output_shape(spec, 4)))
    keys = jax.random.split(jax.random.key(1), len(jax.tree.leaves(params)))
    keys = jax.tree.unflatten(jax.tree.structure(params), keys)
    params = jax.tree.map(lambda w, k: w + 0.1 * jax.random.normal(k, w.shape), params, keys)
    together, alone = predict(params, x), jax.vmap(lambda row: predict(params, row[None])[0])(x)
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-5)
    assert np.abs(np.asarray(together)).max() > 1e-3


@pytest.mark.parametrize(("spec", "table"), MODELS)
def test_the_loss_has_a_clipped_gradient(spec, table):
    built = build(table, spec)
    gradient = clipped_grad(
        built.loss_fn, has_aux=True, batch_argnums=1, prng_argnum=2, l2_clip_norm=0.1
    )
    types = jax.eval_shape(gradient, built.init(), records(spec, 2), jax.random.key(0))[0]
    assert jax.tree.structure(types) == jax.tree.structure(built.init())


@pytest.mark.parametrize(("spec", "table"), MODELS)
def test_narrow_models_predict_alike_and_keep_wide_parameters_and_outputs(spec, table):
    wide = build(table, spec)
    narrow = build(dataclasses.replace(table, dtype="bfloat16"), spec)
    params, x = narrow.init(), records(spec, 2)["x"]
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    params = jax.tree.map(lambda w: w + 0.05 * jnp.ones_like(w), params)
    found, expected = jax.jit(narrow.predict)(params, x), jax.jit(wide.predict)(params, x)
    assert found.dtype == jnp.float32
    assert not jnp.array_equal(found, expected)
    np.testing.assert_allclose(found, expected, rtol=0.1, atol=0.1)


def test_the_default_follows_from_the_kind_of_data():
    assert set(build(ModelTable(), IMAGES).init()) == {"conv", "out"}
    assert set(build(ModelTable(), TABLE).init()) == {"dense", "out"}
    assert set(build(ModelTable(), TOKENS).init()) == {"embedding", "out"}
    assert set(build(ModelTable(), NEXT).init()) > {"embedding", "position", "blocks"}


def test_the_seed_gives_the_initial_parameters():
    first, same, other = (
        build(ModelTable(init_seed=seed), TABLE).init()["dense"][0]["w"] for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, same)
    assert not jnp.array_equal(first, other)


@pytest.mark.parametrize(
    ("table", "spec", "message"),
    [
        (ModelTable("conv"), TABLE, r"conv, which is for image data.*Use linear or mlp, or auto"),
        (ModelTable("mlp"), TOKENS, r"mlp, which is for image or table data.*Use linear or text"),
        (ModelTable("text"), IMAGES, r"text, which is for tokens data"),
        (ModelTable("mlp", widths=()), TABLE, r"widths is \[\]"),
        (ModelTable("mlp", depth=2), TABLE, r"depth is set, but kind mlp has none: it has widths"),
        (ModelTable("linear", widths=(3,)), TABLE, r"linear has none: it has no sizes to set"),
        (ModelTable(module="m.py:f", width=3), TABLE, r"a model of your own has none"),
        (ModelTable(module="m.py:f", dtype="bfloat16"), TABLE, r"remove dtype, and cast in the mo"),
        (ModelTable("linear", module="m.py:f"), TABLE, r"both kind = 'linear' and module = 'm.py"),
        (ModelTable("resnet", depth=12), IMAGES, r"depth is 12: a resnet has 6 n \+ 4 layers"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(table, spec, message):
    with pytest.raises(FixArgumentsError, match=message):
        build(table, spec)


@pytest.mark.parametrize("sizes", [{"widths": (0,)}, {"width": 0}, {"depth": -1}, {"widths": [3]}])
def test_sizes_are_integers_of_a_layer(sizes):
    with pytest.raises(FixArgumentsError, match=r"(width|depth).*: pass (an|a tuple)"):
        ModelTable("mlp", **sizes)
