"""Gram matrices, sums over them and bounds on their rounding, against float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bevel import precision
from bevel.clipping.norms import gram
from bevel.clipping.norms.kernels import gram_kernel
from bevel.clipping.norms.outer_products import OuterProducts, Side

B = 2
# Compile quickly: the programs are small.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def side(rng, lead, entries, dtype, unit):
    """Vectors (lead..., entries...), and the same in float64 with entries in one dimension."""
    size = int(np.prod(entries))
    if unit:
        index = rng.integers(0, size, size=lead)
        return Side(jnp.asarray(index, jnp.int32), entries, one_hot=True), np.eye(size)[index]
    values = jnp.asarray(rng.normal(size=(*lead, *entries)), dtype)
    return Side(values, entries), np.asarray(values, np.float64).reshape(*lead, size)


def use_of(rng, apart, rows, left, right, dtype="float32", units=(False, False), pieces=1):
    """A use with row dimensions `rows`, and its two sides in float64 (B, apart..., rows, size)."""
    made = [
        side(rng, (B, *apart, *rows), entries, dtype, unit)
        for entries, unit in zip((left, right), units, strict=True)
    ]
    (one, wide), (two, other) = made
    dims = (*[None] * len(apart), *range(len(left) + len(right)))
    use = OuterProducts(
        one, two, len(apart), len(rows), dims, precision.matmul_precision(dtype), pieces
    )
    return use, [x.reshape(B, *apart, int(np.prod(rows)), -1) for x in (wide, other)]


def matrix(found, apart, pieces, one, two):
    """(B, apart..., pieces, rows..., rows...) with each set of rows as one, in float64."""
    shape = (B, *apart, pieces, int(np.prod(one)), int(np.prod(two)))
    return np.asarray(found, np.float64).reshape(shape)


# name: (separate, rows of one, rows of two, entries, one-hot vectors in one, in two)
PRODUCTS = {
    "rows": ((), (3,), (4,), (5,), False, False),
    "rows in two dimensions": ((), (2, 3), (4,), (5, 2), False, False),
    "slices": ((3,), (4,), (2, 3), (5,), False, False),
    "slices in slices": ((2, 3), (4,), (1,), (3, 2), False, False),
    "dims": ((), (6,), (4,), (3,), True, True),
    "dims in two dimensions": ((2,), (2, 3), (4,), (3,), True, True),
    "dims and rows": ((), (3,), (4,), (5,), True, False),
    "rows and dims": ((), (3,), (4,), (5,), False, True),
    "dims in two dimensions and rows": ((2,), (2, 3), (4,), (3, 2), True, False),
    "rows and dims in two dimensions": ((2,), (4,), (2, 3), (3, 2), False, True),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_inner_products_are_those_of_all_pairs_of_rows(name, dtype):
    apart, one, two, entries, *units = PRODUCTS[name]
    for which in gram.Sides._fields:
        # The other side has one entry and does not matter.
        rng = np.random.default_rng(1)
        sizes = [entries, (1,)] if which == "left" else [(1,), entries]
        flags = [[u, False] if which == "left" else [False, u] for u in units]
        uses, wide = zip(
            *(
                use_of(rng, apart, rows, *sizes, dtype, flag)
                for rows, flag in zip((one, two), flags, strict=True)
            ),
            strict=True,
        )
        found = gram.inner_products(*uses, which)
        assert found.dtype == np.float32 and found.shape == (B, *apart, 1, *one, *two)
        x, y = (w[which == "right"] for w in wide)
        expected = np.einsum("...td,...sd->...ts", x, y)
        np.testing.assert_allclose(
            matrix(found, apart, 1, one, two)[..., 0, :, :], expected, rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize(
    ("entries", "pieces", "cut"),
    [((8,), 4, True), ((3, 4), 2, True), ((4, 3), 2, True), ((3, 5), 2, False), ((6,), 4, False)],
)
def test_pieces_are_those_of_one_dimension_and_add_up(entries, pieces, cut):
    rng = np.random.default_rng(2)
    use, (wide, _) = use_of(rng, (2,), (3,), entries, (1,), pieces=pieces)
    found = matrix(gram.inner_products(use, use, "left"), (2,), pieces if cut else 1, (3,), (3,))
    whole = np.einsum("...td,...sd->...ts", wide, wide)
    np.testing.assert_allclose(found.sum(axis=2), whole, rtol=1e-5, atol=1e-5)
    if not cut:
        return
    axis = next(i for i, n in enumerate(entries) if n % pieces == 0)
    parts = np.split(wide.reshape(*wide.shape[:-1], *entries), pieces, axis=3 + axis)
    each = [np.einsum("abtd,absd->abts", *[p.reshape(*p.shape[:3], -1)] * 2) for p in parts]
    np.testing.assert_allclose(found, np.stack(each, axis=2), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [(4,), (2, 3), (2, 1, 3)])
def test_diagonal_is_the_squares_of_the_rows(rows):
    rng = np.random.default_rng(3)
    use, (wide, _) = use_of(rng, (2,), rows, (5,), (1,))
    found = gram.diagonal(gram.inner_products(use, use, "left"), len(rows))
    assert found.shape == (B, 2, 1, *rows)
    np.testing.assert_allclose(
        np.asarray(found).reshape(B, 2, -1), np.sum(wide**2, axis=-1), rtol=1e-5
    )


def test_sums_over_rows_and_over_the_rest():
    x = np.random.default_rng(4).normal(size=(2, 3, 4, 5))
    np.testing.assert_allclose(gram.sum_last(jnp.asarray(x), 2), x.sum((2, 3)), rtol=1e-4)
    np.testing.assert_allclose(gram.sum_from(jnp.asarray(x)), x.sum((1, 2, 3)), rtol=1e-4)
    np.testing.assert_allclose(gram.sum_from(jnp.asarray(x), 2), x.sum((2, 3)), rtol=1e-4)


def pairs_of(use, apart):
    grams = [gram.inner_products(use, use, name) for name in gram.Sides._fields]
    return gram.pair_sums(*grams, 1 + len(apart), use.rows)


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize(("apart", "rows"), [((), (5,)), ((3,), (2, 3))])
def test_sums_over_matrices(apart, rows, pieces):
    rng = np.random.default_rng(5)
    use, (left, right) = use_of(rng, apart, rows, (6,), (4,), pieces=pieces)
    found = jax.tree.map(
        np.asarray, jax.jit(lambda u: pairs_of(u, apart), compiler_options=QUICK)(use)
    )
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4)
    close(found.square, np.sum(np.einsum("...td,...tk->...dk", left, right) ** 2, axis=(-1, -2)))
    at = 1 + len(apart)
    # The pieces of each side: (pieces, B, apart..., rows, entries).
    cut = [np.stack(np.split(x, pieces, axis=-1)) for x in (left, right)]
    squares = [np.sum(x**2, axis=-1) for x in cut]
    for i, x in enumerate(cut):
        own = np.moveaxis(np.einsum("...td,...sd->...ts", x, x), 0, at)
        close(found.squares[i], np.sum(own**2, axis=(-1, -2)))
        close(found.sizes[i], np.sum(np.abs(own), axis=(-1, -2)))
        close(found.traces[i], np.sum(squares[i], axis=(0, -1)))
        close(found.longest[i], np.sum(np.max(squares[i], axis=-1), axis=0))
        # They bound those of whole vectors.
        whole = np.sum((left, right)[i] ** 2, axis=-1)
        assert np.all(found.longest[i] >= np.max(whole, axis=-1) * (1 - 1e-6))
    lengths = [np.sum(np.sqrt(s), axis=0) for s in squares]
    close(found.lengths, np.sum(lengths[0] * lengths[1], axis=-1))
    own = np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1)
    assert np.all(found.lengths >= np.sum(own, axis=-1) * (1 - 1e-6))


def test_sums_by_the_kernel_are_those_over_matrices(monkeypatch):
    small = {"tile": 16, "block_d": 16, "interpret": True}
    kernel = functools.partial(gram_kernel.gram_sums, **small)
    monkeypatch.setattr(gram_kernel, "gram_sums", kernel)
    use, _ = use_of(np.random.default_rng(6), (3,), (2, 9), (6,), (4, 2), "bfloat16")
    values = use.left.values, use.right.values
    found = jax.jit(lambda *v: gram.pair_sums_by_kernel(*v, 2, 2, False), compiler_options=QUICK)(
        *values
    )
    wanted = pairs_of(use, (3,))
    assert found.sizes is None and found.longest is None
    for name in ("square", "squares", "traces", "lengths"):
        for a, b in zip(*(jax.tree.leaves(getattr(p, name)) for p in (found, wanted)), strict=True):
            assert a.shape == b.shape, name
            np.testing.assert_allclose(a, b, rtol=1e-4, err_msg=name)


# Bounds on the norm of several uses.


def frobenius(u, v):
    return np.linalg.norm(u @ v.T)


@pytest.mark.parametrize("spread", [1, 8, 64])
def test_rows_of_two_uses_meet_no_more_than_each_its_own(spread):
    """|U V^T|^2 <= |U U^T| |V V^T|, and so for the Gram matrix of all rows."""
    rng = np.random.default_rng(7)
    for trial in range(50):
        t, s, d = rng.integers(1, 7, size=3)
        # Few directions, so that the two sides of the inequality are close.
        u, v = (rng.normal(size=(n, d)) * np.geomspace(1, 1 / spread, d) for n in (t, s))
        v = v if trial % 3 else rng.normal(size=(s, t)) @ u
        own = frobenius(u, u), frobenius(v, v)
        assert frobenius(u, v) ** 2 <= own[0] * own[1] * (1 + 1e-12)
        both = np.concatenate([u, v])
        assert frobenius(both, both) <= sum(own) * (1 + 1e-12)
    u = rng.normal(size=(5, 3))
    np.testing.assert_allclose(frobenius(u, u) ** 2, frobenius(u, u) * frobenius(u, u))


def bounded(uses, apart, growth, summed, scaled):
    """`bound` of uses, without the error of rounding to float32."""
    across = []
    for i, one in enumerate(uses):
        for two in uses[i + 1 :]:
            grams = [gram.inner_products(one, two, name) for name in gram.Sides._fields]
            rows = one.rows + two.rows
            across.append(2 * gram.sum_of_products(*grams, 1 + len(apart), rows))
    rows = sum(int(np.prod(u.right.values.shape[1 + len(apart) :][: u.rows])) for u in uses)
    rounding = gram.Rounding(gram.Sides(*growth), summed, float(rows))
    roundoffs, sides = zip(*scaled, strict=True)
    pairs = [pairs_of(use, apart) for use in uses]
    return gram.bound(pairs, across, rounding, roundoffs, sides)


# name: (separate, rows of each use, pieces)
BOUNDS = {
    "one use": ((), [(5,)], 1),
    "one use in pieces": ((), [(5,)], 2),
    "slices": ((3,), [(5,)], 1),
    "two uses": ((), [(3,), (2, 2)], 1),
    "three uses of slices in pieces": ((2,), [(3,), (4,), (1,)], 2),
}


@functools.cache
def bounds(name, growth=(0.125, 0.03125), summed=2.0**-6):
    """The result of `bound` for some growth, in float64, and its rows."""
    apart, rows, pieces = BOUNDS[name]
    rng = np.random.default_rng(8)
    with jax.enable_x64(True):
        made = [use_of(rng, apart, r, (6,), (4,), "float64", pieces=pieces) for r in rows]
        uses = [use for use, _ in made]
        scaled = [(2.0**-8, ("left", "right")[i % 2]) for i in range(len(uses))]
        form = jax.jit(lambda uses: bounded(uses, apart, growth, summed, scaled))
        found = jax.tree.map(np.asarray, form(uses))
    wide = [[x.reshape(B, -1, *x.shape[-2:]) for x in sides] for _, sides in made]
    return found, wide, scaled


def stacked(wide):
    """All rows of each side, (B, separate, rows, entries)."""
    return [np.concatenate([sides[i] for sides in wide], axis=2) for i in range(2)]


@pytest.mark.parametrize("name", BOUNDS)
def test_square_and_traces_are_those_of_all_uses_together(name):
    found, wide, _ = bounds(name)
    left, right = stacked(wide)
    gradient = np.einsum("bstd,bstk->bsdk", left, right)
    np.testing.assert_allclose(found.square, np.sum(gradient**2, axis=(1, 2, 3)), rtol=1e-10)
    for trace, x in ((found.left, left), (found.right, right)):
        np.testing.assert_allclose(trace, np.sum(x**2, axis=(1, 2, 3)), rtol=1e-12)
    lengths = np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1)
    absolute = np.linalg.norm(lengths.sum(2), axis=1)  # gradients of slices are orthogonal
    assert np.all(found.absolute >= absolute)
    pieces = BOUNDS[name][2]
    assert np.all(found.absolute <= pieces * absolute * (1 + 2.0**-6) * (1 + 1e-12))


@pytest.mark.parametrize("name", BOUNDS)
def test_error_covers_what_entries_and_sums_may_be_off_by(name):
    """Perturbs entries by growth times the lengths of their rows, and the sum by its own growth."""
    growth, summed = (0.125, 0.03125), 2.0**-6
    found, wide, _ = bounds(name)
    grams, lengths = [], []
    for x in stacked(wide):
        grams.append(np.einsum("bstd,bsvd->bstv", x, x))
        own = np.linalg.norm(x, axis=-1)
        lengths.append(own[..., :, None] * own[..., None, :])
    exact = np.sum(grams[0] * grams[1], axis=(1, 2, 3))
    rng = np.random.default_rng(9)
    # At random, and in the worst direction.
    signs = [(rng.choice([-1, 1], grams[0].shape), rng.choice([-1, 1], grams[0].shape))] * 2
    signs += [(np.sign(grams[1]), np.sign(grams[0])), (-np.sign(grams[1]), np.sign(grams[0]))]
    for one, two in signs:
        off = [
            g + s * d * length
            for g, s, d, length in zip(grams, (one, two), growth, lengths, strict=True)
        ]
        terms = off[0] * off[1]
        for direction in (-1, 1):
            got = np.sum(terms * (1 + direction * summed * np.sign(terms)), axis=(1, 2, 3))
            assert np.all(np.abs(got - exact) <= found.error)


@pytest.mark.parametrize("name", BOUNDS)
def test_moved_covers_rows_that_are_off(name):
    found, wide, scaled = bounds(name)
    rng = np.random.default_rng(10)
    for trial in range(20):
        total = 0.0
        for (left, right), (roundoff, which) in zip(wide, scaled, strict=True):
            own, other = (left, right) if which == "left" else (right, left)
            d = rng.normal(size=own.shape)
            if trial % 2:  # all along the largest singular vector of the other side
                _, _, vectors = np.linalg.svd(other)
                sign = np.sign(np.einsum("bstd,bsd->bst", other, vectors[..., 0, :]))
                d = np.broadcast_to(d[:, :, :1], own.shape) * sign[..., None]
            d *= (np.linalg.norm(own, axis=-1) / np.linalg.norm(d, axis=-1))[..., None] * roundoff
            pair = (d, other) if which == "left" else (other, d)
            total = total + np.einsum("bstd,bstk->bsdk", *pair)
        assert np.all(np.linalg.norm(total.reshape(B, -1), axis=-1) <= found.shift)


def test_bound_in_float32_covers_its_own_rounding():
    rng = np.random.default_rng(11)
    use, (left, right) = use_of(rng, (), (40,), (64,), (48,))
    growth = [precision.rounding_growth(2 * n + 16) for n in (64, 48)]
    summed = precision.rounding_growth(2 * 40 + 33)
    form = jax.jit(lambda use: bounded([use], (), growth, summed, [(0.0, "left")]))
    found = form(use)
    exact = np.sum(np.einsum("btd,btk->bdk", left, right) ** 2, axis=(1, 2))
    assert np.all(np.abs(np.asarray(found.square, np.float64) - exact) <= found.error)
    assert np.all(found.error <= 1e-3 * exact) and not np.any(found.shift)


# Whether the kernel is used.


@pytest.mark.parametrize("rows", [gram.KERNEL_ROWS - 1, gram.KERNEL_ROWS])
@pytest.mark.parametrize("found", [True, False])
def test_the_kernel_takes_many_rows_where_there_is_one(monkeypatch, rows, found):
    asked = []

    def available(*dtypes, tf32):
        asked.append((*dtypes, tf32))
        return found

    monkeypatch.setattr(gram_kernel, "available", available)
    multiplier = precision.matmul_precision(jnp.bfloat16)
    assert gram.kernel_takes(rows, multiplier) is (found and rows == gram.KERNEL_ROWS)
    assert asked == [(jnp.bfloat16, jnp.bfloat16, False)]
    assert gram.kernel_chunk() == gram_kernel.CHUNK
