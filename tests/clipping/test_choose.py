"""Which way is taken for shapes that are typical of models, and what ways cost."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from bevel.clipping import choose as choosing
from bevel.clipping.choose import choose, choose_one, overlap_of_uses
from bevel.clipping.norms import gram
from bevel.clipping.norms.kernels import gram_kernel
from bevel.clipping.options import WAYS
from bevel.clipping.plan import tapped_parameter
from bevel.clipping.uses.find import find_uses
from bevel.errors import FixArgumentsError


def of(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def found_in(loss, params, example):
    flat, tree = jax.tree.flatten(params)
    program = jax.make_jaxpr(lambda *a: loss(jax.tree.unflatten(tree, a[:-1]), a[-1]))
    return find_uses(program(*flat, example), len(flat)), flat


def chosen(loss, param, example, asked=None, placed=False):
    found, flat = found_in(loss, param, example)
    return choose_one(0, found[0], flat[0], asked, placed)


def product(w, x):
    return jnp.sum(jnp.tanh(x @ w))


def looked_up(w, k):
    return jnp.sum(jnp.tanh(w[k]))


def tied(w, k):
    return jnp.sum(jnp.tanh(w[k]) @ w.T)


def convolved(w, x):
    return jnp.sum(lax.conv_general_dilated(x, w, (1, 1), "SAME") ** 2)


def layers(w, x):
    return jnp.sum(lax.scan(lambda h, v: (jnp.tanh(h @ v), None), x, w)[0])


TOKENS = of(1, 128, dtype=jnp.int32)
TYPICAL = {
    "a layer of one row": (product, of(512, 512), of(1, 512), {"outer"}),
    "layers of one row": (layers, of(8, 512, 512), of(1, 512), {"outer"}),
    "a vector": (product, of(512, 1), of(1, 512), {"outer"}),
    "few rows, a large matrix": (product, of(1024, 1024), of(1, 8, 1024), {"gram"}),
    "a long sequence, a small matrix": (product, of(32, 32), of(1, 2048, 32), {"keep", "product"}),
    "a long sequence, a wide matrix": (
        product,
        of(512, 512),
        of(1, 2048, 512),
        {"keep", "product"},
    ),
    "an embedding": (looked_up, of(32000, 64), TOKENS, {"gram"}),
    "an embedding, of one token": (looked_up, of(32000, 64), of(1, dtype=jnp.int32), {"outer"}),
    "a tied embedding, few tokens": (tied, of(32000, 64), of(1, 8, dtype=jnp.int32), {"gram"}),
    "a small kernel": (convolved, of(8, 3, 3, 3), of(1, 3, 32, 32), {"keep", "form"}),
    "a large kernel, few pixels": (convolved, of(512, 512, 3, 3), of(1, 512, 4, 4), {"gram"}),
}


@pytest.mark.parametrize("name", TYPICAL)
def test_the_way_of_typical_shapes(name):
    loss, param, example, ways = TYPICAL[name]
    one = chosen(loss, param, example)
    assert one.way in ways
    assert one.way in one.costs and set(one.costs) <= set(WAYS)
    tap = tapped_parameter(one, param)
    assert (tap is None) == (one.way == "keep")
    assert tap is None or (tap.way, tap.shape) == (one.way, param.shape)


def test_bfloat16_takes_the_way_whose_slack_is_small():
    one = chosen(product, of(64, 64, dtype=jnp.bfloat16), of(1, 4096, 64, dtype=jnp.bfloat16))
    assert one.costs[one.way].slack <= gram.WORST_SLACK


def heads(w, x):
    """Layers that are not square."""
    return jnp.sum(lax.scan(lambda total, v: (total + jnp.sum(jnp.tanh(x @ v)), None), 0.0, w)[0])


def test_on_a_gpu_layers_that_a_loop_stacks_are_not_kept_as_soon(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(gram_kernel, "available", lambda *dtypes, **options: True)
    example = of(1, 512, 768, dtype=jnp.bfloat16)
    assert chosen(product, of(768, 2304, dtype=jnp.bfloat16), example).way == "keep"
    assert chosen(product, of(768, 3072, dtype=jnp.bfloat16), example).way == "gram"
    assert chosen(heads, of(12, 768, 2304, dtype=jnp.bfloat16), example).way == "gram"
    assert chosen(heads, of(12, 768, 768, dtype=jnp.bfloat16), example).way == "keep"


def test_within_a_remat_no_large_gradient_is_kept(monkeypatch):
    remat = jax.checkpoint(product)
    assert chosen(product, of(128, 128), of(1, 2048, 128)).way == "keep"
    assert chosen(remat, of(128, 128), of(1, 2048, 128)).way != "keep" or choosing.SMALL >= 128**2
    monkeypatch.setattr(choosing, "SMALL", 0)
    assert chosen(remat, of(128, 128), of(1, 2048, 128)).way == "product"


def test_on_a_cpu_patches_larger_than_the_gradient_are_not_formed(monkeypatch):
    small, few = of(8, 3, 3, 3), of(16, 16, 3, 3)
    cases = [(small, of(1, 3, 32, 32)), (few, of(1, 16, 4, 4))]
    assert [chosen(convolved, *case).costs["form"].temporary > 0 for case in cases] == [True] * 2
    assert chosen(convolved, *cases[0]).way == "keep"
    assert chosen(convolved, *cases[0], "form").way == "form"  # if it is asked for
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert chosen(convolved, *cases[0]).way == "form"


def test_on_a_mesh_layers_that_a_loop_stacks_are_not_kept_as_soon(monkeypatch):
    case = layers, of(8, 128, 128), of(1, 48, 128)  # gradients 4/3 of the size of the values
    assert chosen(*case).way == "keep"
    assert chosen(*case, placed=True).way != "keep"
    monkeypatch.setattr(choosing, "on_one_device", lambda: True)
    assert chosen(*case, placed=True).way == "keep"


def test_what_is_not_understood_is_kept_and_says_why():
    cases = {
        "not used": lambda w, x: jnp.sum(x),
        "a use without a rule": lambda w, x: jnp.sum(x @ w) + jnp.sum(x * w[:1]),
        "the same for every example": lambda w, x: jnp.sum(x) * jnp.sum(w),
        "overlapping uses of different shape": lambda w, x: product(w[:, :4], x) + product(w, x),
    }
    for why, loss in cases.items():
        one = chosen(loss, of(8, 8), of(1, 8), "gram")
        assert (one.way, one.costs, one.uses, one.why) == ("keep", {}, None, why)
        assert tapped_parameter(one, of(8, 8)) is None


@pytest.mark.parametrize("way", ["outer", "gram", "product", "keep"])
def test_a_way_that_is_asked_for_is_taken_where_it_can_be(way):
    assert chosen(product, of(8, 8), of(1, 8), way).way == way
    several = chosen(product, of(8, 8), of(1, 4, 8), way)
    assert "outer" not in several.costs
    assert (several.way == way) == (way != "outer")
    lookup = chosen(looked_up, of(50, 8), TOKENS, way)
    assert "product" not in lookup.costs and lookup.way in lookup.costs


def test_ways_by_path_must_be_possible():
    found, flat = found_in(
        lambda p, x: product(p["w"], x), {"b": of(3), "w": of(8, 8)}, of(1, 4, 8)
    )
    ways = [c.way for c in choose(found, flat, {"w": "gram"}, ["['b']", "['w']"])]
    assert ways == ["keep", "gram"]
    with pytest.raises(FixArgumentsError, match=r"'v'.* no parameter has that in its path"):
        choose(found, flat, {"v": "gram"}, ["['b']", "['w']"])
    message = r"'outer' for \['w'\], which is not possible there: write"
    with pytest.raises(FixArgumentsError, match=message):
        choose(found, flat, {"w": "outer"}, ["['b']", "['w']"])
    message = r"not possible there \(not used\): write one of keep"
    with pytest.raises(FixArgumentsError, match=message):
        choose(found, flat, {"b": "gram"}, ["['b']", "['w']"])


RELATED = {
    "one use": (lambda w, x: product(w, x), "disjoint"),
    "two parts": (lambda w, x: product(w[:, :3], x) + product(w[:, 3:], x), "disjoint"),
    "parts that overlap": (lambda w, x: product(w[:, :4], x) + product(w[:, 3:], x), None),
    "one part twice": (lambda w, x: product(w[:, :4], x) + product(w[:, :4], x**2), None),
    "all of it twice": (lambda w, x: product(w, x) + product(w, x**2), "overlapping"),
    "and transposed": (lambda w, x: product(w, x) + product(w.T, x), "overlapping"),
    "and reversed": (lambda w, x: product(w, x) + product(w[::-1], x), None),
    "and reshaped": (
        lambda w, x: product(w, x) + product(w.reshape(4, 16).T.reshape(8, 8), x),
        None,
    ),
    "and in a loop": (
        lambda w, x: product(w, lax.fori_loop(0, 2, lambda _, h: jnp.tanh(h @ w), x)),
        "overlapping",
    ),
    "and by rows": (
        lambda w, x: product(w, x) + jnp.sum(lax.scan(lambda c, v: (c, x[0] @ v), 0, w)[1]),
        None,
    ),
    "and looked up": (lambda w, x: product(w, x) + looked_up(w, jnp.int32(x)), "overlapping"),
    "and its entries looked up": (
        lambda w, x: product(w, x) + jnp.sum(w[jnp.int32(x), jnp.int32(x)]),
        None,
    ),
}


@pytest.mark.parametrize("name", RELATED)
def test_how_uses_are_related(name):
    loss, expected = RELATED[name]
    found, flat = found_in(loss, of(8, 8), of(1, 8))
    assert found[0]
    assert overlap_of_uses(found[0], flat[0].shape) == expected
