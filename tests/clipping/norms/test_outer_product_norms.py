"""The ways to compute a norm, against float64, at scales whose squares overflow or underflow."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bevel import precision
from bevel.clipping.norms import gram, outer_product_norms
from bevel.clipping.norms.outer_products import OuterProducts, Side

B = 4
TF32 = "as TF32"  # float32 that a matrix unit rounds to 11 significant bits
FLOAT64 = "float64"
# Compile quickly: the programs are small.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def multiplier(kind):
    made = precision.matmul_precision("float32" if kind == TF32 else kind)
    if kind == "bfloat16":  # as on an accelerator
        return dataclasses.replace(made, roundoff=2.0**-8, scaled=jnp.dtype(kind))
    return dataclasses.replace(made, roundoff=2.0**-11, mantissa=10) if kind == TF32 else made


def use_of(left, right, separate, rows, kind="float32", table=None):
    """From values (B, separate..., rows..., entries...), or indices of a `table` on the left."""
    dtype, first = multiplier(kind).dtype, 1 + separate + rows
    narrow = [np.asarray(x).astype(dtype) for x in (left, right)]
    sides = [Side(jnp.asarray(x), x.shape[first:]) for x in narrow]
    if table:
        sides[0] = Side(jnp.asarray(left, jnp.int32), (table,), one_hot=True)
    count = len(sides[0].entries) + len(sides[1].entries)
    dims = (*[None] * separate, *range(count))
    return OuterProducts(*sides, separate, rows, dims, multiplier(kind)).operands()


def wide_of(use):
    """Both sides in float64, (B, separate, rows, entries)."""
    shape = use.right.values.shape[1 : 1 + use.separate]
    found = []
    for side in (use.left, use.right):
        x = np.asarray(side.values)
        x = np.eye(side.size)[x] if side.one_hot else x.astype(np.float64)
        rows = int(np.prod(x.shape[1 + use.separate : 1 + use.separate + use.rows]))
        found.append(x.reshape(B, int(np.prod(shape)), rows, -1))
    return found


def lengths(use):
    """Norms of the gradients, by definition."""
    gradient = np.einsum("bstd,bstk->bsdk", *wide_of(use))
    return np.linalg.norm(gradient.reshape(B, -1), axis=-1)


# The scales of the two sides for each example: squares overflow, underflow, or both.
SCALES = {
    "ordinary": (1, 1),
    "opposite ends": (2.0**125, 2.0**-125),
    "opposite ends, turned": (2.0**-125, 2.0**125),
    "large": (2.0**70, 2.0**50),
    "small": (2.0**-70, 2.0**-50),
}


@functools.partial(jax.jit, compiler_options=QUICK)
def outer(use):
    return outer_product_norms.outer_norm(use, scaled=True).norm


def check_outer(use):
    found, exact = outer(use), lengths(use)
    for number in found:
        assert number.dtype == use.dtype and number.shape == (B,)
    tolerance = precision.rounding_growth(100, use.dtype)
    np.testing.assert_allclose(np.asarray(found.estimate, np.float64), exact, rtol=tolerance)
    upper = np.asarray(found.upper, np.float64)
    assert np.all(upper >= exact * (1 + use.multiplier.roundoff))
    assert np.all(upper <= exact * (1 + 1.1 * use.multiplier.roundoff + 2 * tolerance))


def numbers(rng, *shape):
    """No value is subnormal at any of the scales."""
    return rng.uniform(1, 3.9, size=shape) * rng.choice([-1, 1], size=shape)


@pytest.mark.parametrize("apart", [(), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize("kind", ["float32", "bfloat16", TF32, FLOAT64])
def test_outer_norm_at_any_scale(kind, apart):
    rng = np.random.default_rng(0)
    h, g = numbers(rng, B, *apart, 1, 5), numbers(rng, B, *apart, 1, 2, 3)
    with jax.enable_x64(kind == "float64"):
        for scales in SCALES.values():
            # Powers whose squares NumPy can represent, so the reference norm needs no scaling.
            left, right = (float(s) ** (3 if kind == "float64" else 1) for s in scales)
            check_outer(use_of(h * left, g * right, len(apart), 1, kind))


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_outer_norm_in_one_pass_says_where_it_is_sound(kind):
    rng = np.random.default_rng(7)
    h, g = numbers(rng, B, 2, 1, 5), numbers(rng, B, 2, 1, 3)
    h *= np.array([1, 2.0**70, 2.0**-70, 0]).reshape(-1, 1, 1, 1)
    use = use_of(h, g, 1, 1, kind)
    norm, sound = jax.jit(lambda use: outer_product_norms.outer_norm(use, scaled=False))(use)
    exact = lengths(use)
    # Squares near 2^-140 may or may not underflow: the bound holds in both cases.
    assert sound.tolist() in ([True, False, kept, True] for kept in (True, False))
    for i in (0, 2, 3):
        assert float(norm.upper[i]) >= exact[i]
    np.testing.assert_allclose(norm.estimate[0], exact[0], rtol=1e-5)
    assert norm.estimate[3] == 0 and float(norm.upper[3]) < 2.0**-50


def test_outer_norm_of_slices_of_different_scales():
    """The larger one decides, and no intermediate result overflows."""
    rng = np.random.default_rng(1)
    h, g = rng.normal(size=(B, 4, 1, 5)), rng.normal(size=(B, 4, 1, 3))
    h *= np.array([2.0**120, 2.0**-120, 1, 2.0**60])[:, None, None]
    g *= np.array([2.0**-120, 2.0**120, 1, 2.0**-60])[:, None, None]
    check_outer(use_of(h, g, 1, 1))
    h[:, 0] *= 2.0**-120  # now negligible next to the others
    check_outer(use_of(h, g, 1, 1))


def test_outer_norm_of_one_place_in_a_table():
    g = np.random.default_rng(2).normal(size=(B, 1, 6)) * 2.0**100
    check_outer(use_of(np.arange(B)[:, None], g, 0, 1, table=5))


@pytest.mark.parametrize("side", [0, 1])
def test_outer_norm_of_zeros_and_of_what_is_not_finite(side):
    sides = [np.ones((B, 2, 1, 3)), np.ones((B, 2, 1, 4))]
    sides[side][0] = 0
    sides[side][1, 1, 0, 2] = np.nan
    sides[side][2, 0, 0, 0] = -np.inf
    estimate, upper = outer(use_of(*sides, 1, 1))
    assert estimate[0] == upper[0] == 0
    assert np.isfinite(upper).tolist() == [True, False, False, True]


def test_lengths_are_none_too_short():
    x = np.random.default_rng(3).normal(size=(2, 3, 7)).astype(np.float32)
    x *= np.array([2.0**-120, 1, 2.0**120], np.float32)[:, None]
    found = np.asarray(outer_product_norms.row_norms(jnp.asarray(x)), np.float64)
    exact = np.linalg.norm(x.astype(np.float64), axis=-1)
    assert np.all(found >= exact) and np.all(found <= exact * (1 + 1e-5))


# Several rows.


def gram_sums(uses):
    pairs = outer_product_norms.gram_sums(uses)
    return gram.bound(*pairs, *outer_product_norms.gram_rounding(uses))


FORMS = {"gram": gram_sums, "product": outer_product_norms.product_sums}
# name: (separate, rows, entries of the left, of the right)
SHAPES = {
    "rows": ((), (5,), (6,), (4,)),
    "few entries": ((), (9,), (2,), (3,)),
    "slices of rows in two dimensions": ((2,), (2, 3), (3, 2), (4,)),
}
KINDS = ("float32", "bfloat16", TF32)


def drawn(name, kind, seed=4):
    apart, rows, left, right = SHAPES[name]
    rng = np.random.default_rng(seed)
    lead = (B, *apart, *rows)
    h, g = rng.normal(size=(*lead, *left)), rng.normal(size=(*lead, *right))
    h[1], g[1] = np.abs(h[1]), np.abs(g[1])  # rows with about the same direction
    h[2] *= 2.0 ** rng.integers(-8, 8, size=h[2].shape)
    return use_of(h, g, len(apart), len(rows), kind)


@functools.partial(jax.jit, static_argnames="way", compiler_options=QUICK)
def sums(uses, way):
    return FORMS[way](uses)


@pytest.mark.parametrize("way", FORMS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SHAPES)
def test_sums_bound_what_they_are_of(name, kind, way):
    use = drawn(name, kind)
    found = jax.tree.map(lambda x: np.asarray(x, np.float64), sums([use], way))
    left, right = wide_of(use)
    each = np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1)
    exact = lengths(use) ** 2
    np.testing.assert_allclose(found.square, exact, rtol=1e-4)
    # The error of formed entries is counted in `shift`.
    off = np.abs(np.sqrt(found.square) - np.sqrt(exact))
    assert np.all(off <= np.sqrt(found.square + found.error) - np.sqrt(found.square) + found.shift)
    absolute = np.linalg.norm(each.sum(2), axis=1)  # gradients of slices are orthogonal
    assert np.all(found.absolute >= absolute) and np.all(found.absolute <= absolute * 1.0001)
    for trace, x in ((found.left, left), (found.right, right)):
        np.testing.assert_allclose(trace, np.sum(x**2, axis=(1, 2, 3)), rtol=1e-5)


def moves(left, right, roundoff):
    """The largest |sum_t d_t (x) r_t| found with |d_t| <= roundoff |l_t|, (B,)."""
    rng = np.random.default_rng(5)
    limit = roundoff * np.linalg.norm(left, axis=-1)
    longest = np.zeros(B)
    _, _, vectors = np.linalg.svd(right)
    for trial in range(40):
        d = rng.normal(size=left.shape)
        if trial % 2:  # all in one direction, along the largest singular vector of r
            sign = np.sign(np.einsum("bstk,bsk->bst", right, vectors[..., 0, :]))
            d = np.broadcast_to(d[:, :, :1], left.shape) * sign[..., None]
        d = d * (limit / np.linalg.norm(d, axis=-1))[..., None]
        gradient = np.einsum("bstd,bstk->bsdk", d, right)
        longest = np.maximum(longest, np.linalg.norm(gradient.reshape(B, -1), axis=-1))
    return longest


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("turned", [False, True])
def test_product_moves_bounds_rows_that_are_off(name, kind, turned):
    use = drawn(name, kind)
    use = use.with_sides_swapped() if turned else use
    left, right = wide_of(use)
    absolute = np.sum(np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1), axis=(1, 2))
    traces = [np.sum(x**2, axis=(1, 2, 3)) for x in (left, right)]
    arguments = [[jnp.asarray(t, jnp.float32) for t in traces], jnp.asarray(absolute, jnp.float32)]
    found = np.asarray(outer_product_norms.product_shift(use, *arguments), np.float64)
    sides = (left, right) if use.scales_left("product") else (right, left)
    assert np.all(moves(*sides, 1.0) <= found * (1 + 1e-5))
    assert np.all(found <= absolute * (1 + 1e-5))
    if kind == "float32":
        np.testing.assert_allclose(found, absolute, rtol=1e-6)


@pytest.mark.parametrize("way", FORMS)
@pytest.mark.parametrize("kind", ["bfloat16", TF32])
def test_moved_bounds_rounding_of_the_side_that_takes_the_coefficient(kind, way):
    use = drawn("rows", kind)
    found = np.asarray(sums([use], way).shift, np.float64)
    left, right = wide_of(use)
    sides = (left, right) if use.scales_left(way) else (right, left)
    assert np.all(moves(*sides, use.multiplier.roundoff) <= found)


@pytest.mark.parametrize("way", FORMS)
def test_sums_of_two_uses_are_those_of_all_their_rows(way):
    uses = [drawn("rows", "float32", seed) for seed in (6, 7)]
    sides = [np.concatenate(x, axis=2) for x in zip(*map(wide_of, uses), strict=True)]
    together = use_of(*(x[:, 0] for x in sides), 0, 1)
    found = sums(uses, way)
    np.testing.assert_allclose(found.square, lengths(together) ** 2, rtol=1e-4)
    whole = sums([together], way)
    for name in ("left", "right", "absolute"):
        np.testing.assert_allclose(getattr(found, name), getattr(whole, name), rtol=1e-4)
