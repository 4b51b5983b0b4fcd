"""The kernel, interpreted on the CPU against float64, and lowered for a GPU without one."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, PartitionSpec

from bevel import precision
from bevel.clipping.norms.kernels import gram_kernel
from bevel.clipping.norms.kernels.gram_kernel import (
    GramSums,
    available,
    gram_sums,
    triangle,
    xla_gram_sums,
)

TILE = 16
# name: (N, T, D, K), in tiles and blocks of 16
SHAPES = {
    "whole tiles": (2, 32, 32, 48),
    "ragged rows": (3, 37, 32, 16),
    "ragged columns": (2, 32, 40, 24),
    "rows that start on odd bytes": (2, 33, 17, 31),
    "fewer rows than a tile": (2, 5, 24, 8),
    "one row": (2, 1, 24, 40),
    "one example": (1, 50, 16, 16),
    "one of everything": (1, 1, 1, 1),
}
RAGGED = SHAPES["ragged rows"]
# The operands are read separately, so one call tests two dtypes.
DTYPES = ("bfloat16", "float32")
# Compile quickly: the programs are small.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
quick = functools.partial(jax.jit, compiler_options=QUICK)
interpreted = functools.partial(gram_sums, tile=TILE, block_d=TILE, tf32=True, interpret=True)
FORMS = {"kernel": quick(interpreted), "XLA": jax.jit(xla_gram_sums)}
kernel = FORMS["kernel"]


def operands(shape, dtypes=DTYPES, seed=0):
    n, t, *widths = shape
    rng = np.random.default_rng(seed)
    return tuple(
        jnp.asarray(rng.normal(size=(n, t, width)), jnp.dtype(dtype))
        for width, dtype in zip(widths, dtypes, strict=True)
    )


def truth(h, g):
    """The definition, from the entries of the Gram matrices, in float64."""
    h, g = (np.asarray(x, np.float64) for x in (h, g))
    gh, gg = (np.einsum("ntd,nsd->nts", x, x) for x in (h, g))
    dh, dg = (np.einsum("ntt->nt", x) for x in (gh, gg))
    over = [x.sum(axis=(1, 2)) for x in (gh * gg, gh * gh, gg * gg)]
    rows = [x.sum(axis=1) for x in (dh, dg, np.sqrt(dh * dg))]
    return GramSums(*over, *rows)


def truth_in_chunks(h, g, chunk):
    """The same with g in chunks of columns, from the parts of each sum over Gg."""
    parts = [truth(h, g[..., start : start + chunk]) for start in range(0, g.shape[2], chunk)]
    each = GramSums(*(np.stack(x) for x in zip(*parts, strict=True)))
    return each._replace(
        **{name: getattr(each, name).sum(0) for name in ("square", "g_trace", "lengths")},
        **{name: getattr(each, name)[0] for name in ("h_square", "h_trace")},
        g_square=np.sqrt(each.g_square).sum(0) ** 2,
    )


def exchanged(sums):
    """The sums of (h, g), from those of (g, h)."""
    square, h_square, g_square, h_trace, g_trace, lengths = sums
    return GramSums(square, g_square, h_square, g_trace, h_trace, lengths)


def sizes(exact):
    """What each sum would be without cancellation: rounding errors are relative to that."""
    squares = (exact.lengths**2, exact.h_trace**2, exact.g_trace**2)
    return exact._replace(square=squares[0], h_square=squares[1], g_square=squares[2])


def check(got, exact, shape):
    _, t, d, k = shape
    gamma = precision.rounding_growth(d + k + 2 * TILE + (t // TILE + 1) ** 2 + 8)
    for name, found, wanted, scale in zip(exact._fields, got, exact, sizes(exact), strict=True):
        assert found.dtype == jnp.float32 and found.shape == shape[:1], name
        np.testing.assert_array_less(
            np.abs(np.asarray(found, np.float64) - wanted),
            gamma * scale + np.finfo(np.float32).tiny,
            err_msg=name,
        )


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_sums_are_those_of_the_matrices_they_avoid(form, shape):
    h, g = operands(shape)
    check(form(h, g), truth(h, g), shape)


@pytest.mark.parametrize("dtypes", [("float32", "bfloat16"), ("bfloat16",) * 2, ("float32",) * 2])
def test_h_and_g_may_have_any_of_the_dtypes(dtypes):
    h, g = operands(RAGGED, dtypes)
    check(kernel(h, g), truth(h, g), RAGGED)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_cancelling_rows_are_off_by_rounding_of_what_cancels(form):
    h, g = operands((2, 16, 32, 48))
    h, g = jnp.concatenate([h, h], axis=1), jnp.concatenate([g, -g], axis=1)
    exact = truth(h, g)
    assert np.all(exact.square < 1e-12 * exact.lengths**2)
    check(form(h, g), exact, SHAPES["whole tiles"])


def test_square_is_the_squared_norm_of_the_sum_of_outer_products():
    h, g = operands(RAGGED)
    gradient = np.einsum("ntd,ntk->ndk", *(np.asarray(x, np.float64) for x in (h, g)))
    np.testing.assert_allclose(kernel(h, g).square, (gradient**2).sum((1, 2)), rtol=1e-5)


@pytest.mark.parametrize("tile", [16, 32, 64])
def test_tiles_below_the_diagonal_count_twice_whatever_the_tile(tile):
    """With a tile of 64 there is one pair and nothing is counted twice."""
    h, g = operands(RAGGED)
    form = functools.partial(gram_sums, tile=tile, block_d=TILE, tf32=True, interpret=True)
    check(quick(form)(h, g), truth(h, g), RAGGED)


def test_rows_of_one_tile_meet_those_of_another():
    """Two equal rows in tiles 0 and 2: everything comes from the diagonal and one pair."""
    h, g = (jnp.zeros_like(x) for x in operands(RAGGED))
    h, g = (x.at[0, 3, :4].set(2).at[0, 2 * TILE + 4, :4].set(2) for x in (h, g))
    # Both Gram matrices have 4 entries of 4 * 4 = 16.
    expected = [4 * 16**2, 4 * 16**2, 4 * 16**2, 32, 32, 32]
    assert [x.tolist() for x in kernel(h, g)] == [[x, 0, 0] for x in expected]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_zeros_give_zeros(form):
    h, g = operands(RAGGED)
    for found in form(h, jnp.zeros_like(g)), form(jnp.zeros_like(h), g):
        assert not np.any(found.square) and not np.any(found.lengths)
    assert not np.any(np.asarray(form(jnp.zeros_like(h), jnp.zeros_like(g))))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("axis", range(4))
def test_an_empty_axis_gives_zeros(form, axis):
    shape = [2, 3, 4, 5]
    shape[axis] = 0
    found = form(*operands(shape))
    assert all(x.shape == (shape[0],) for x in found) and not np.any(np.asarray(found.square))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_nan_stays_in_its_example_and_shows_in_all_of_it(form):
    h, g = operands(RAGGED)
    found = form(h.at[1, 36, 2].set(-np.nan), g.at[2, 0, 15].set(np.nan))
    for name, values in found._asdict().items():
        of_h, of_g = not name.startswith("g_"), not name.startswith("h_")
        assert np.isnan(values).tolist() == [False, of_h, of_g], name


CHUNK = 2 * TILE
# name: (N, T, D, K), with the columns of g, or of h where there are more of them, in chunks of 32
IN_CHUNKS = {
    "whole chunks": (2, 20, 16, 64),
    "a ragged chunk": (2, 20, 24, 70),
    "a chunk of one column": (2, 5, 1, 33),
    "no chunks": (2, 20, 32, 32),
    "h is longer": (2, 20, 70, 24),
    "both are long": (2, 20, 40, 70),
    "both are long, h more so": (2, 20, 70, 40),
}


def in_chunks(monkeypatch, h, g):
    monkeypatch.setattr(gram_kernel, "CHUNK", CHUNK)
    found = jax.jit(lambda h, g: interpreted(h, g), compiler_options=QUICK)(h, g)
    if h.shape[2] > max(CHUNK, g.shape[2]):
        return found, exchanged(truth_in_chunks(g, h, CHUNK))
    return found, truth_in_chunks(h, g, CHUNK)


@pytest.mark.parametrize("shape", IN_CHUNKS.values(), ids=IN_CHUNKS)
def test_chunks_of_columns_add_up(monkeypatch, shape):
    h, g = operands(shape)
    found, exact = in_chunks(monkeypatch, h, g)
    check(found, exact, shape)
    # Squares and lengths combined from chunks are upper bounds. The other sums are exact.
    whole = truth(h, g)
    for name, wanted in whole._asdict().items():
        assert np.all(getattr(found, name) >= wanted * (1 - 1e-5)), name
    np.testing.assert_allclose(found.square, whole.square, rtol=1e-4)
    for name in ("h_trace", "g_trace"):
        np.testing.assert_allclose(getattr(found, name), getattr(whole, name), rtol=1e-5)


def test_nan_in_any_chunk_shows(monkeypatch):
    h, g = operands((4, 5, 70, 16))
    h, g = h.at[1, 4, -1].set(np.nan), g.at[2, 4, -1].set(np.nan)
    found, _ = in_chunks(monkeypatch, h, g)
    for name, values in found._asdict().items():
        of_h, of_g = not name.startswith("g_"), not name.startswith("h_")
        assert np.isnan(values).tolist() == [False, of_h, of_g, False], name


def test_triangle_names_every_pair_once():
    count = 60
    i, j = jax.vmap(triangle)(jnp.arange(count * (count + 1) // 2))
    expected = [(a, b) for a in range(count) for b in range(a + 1)]
    assert list(zip(i.tolist(), j.tolist(), strict=True)) == expected


@pytest.mark.parametrize("row", [1000, 4095, 4096, 30000])
def test_triangle_is_exact_where_its_root_is_rounded(row):
    corner = row * (row + 1) // 2
    i, j = jax.vmap(triangle)(jnp.array([corner - 1, corner, corner + row]))
    assert i.tolist() == [row - 1, row, row] and j.tolist() == [row - 1, 0, row]


def test_nothing_as_large_as_a_gram_matrix_is_kept():
    n, t, d, k = 2, 64, 16, 32
    h, g = operands((n, t, d, k), ("bfloat16", "bfloat16"))
    jaxpr = jax.make_jaxpr(functools.partial(gram_sums, interpret=True))(h, g)
    kept = [v.aval.size for eqn in jaxpr.eqns for v in eqn.outvars]
    assert max(kept) * 4 < n * t * t


@pytest.mark.parametrize("check_vma", [True, False])
def test_each_shard_sums_its_own_examples(check_vma):
    h, g = operands((8, 20, 16, 16))
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    split = PartitionSpec("data")
    # The interpreter's loops lose varying axes, so with check_vma the kernel is only traced.
    form = functools.partial(gram_sums, tf32=True) if check_vma else interpreted
    sharded = jax.shard_map(form, mesh=mesh, in_specs=split, out_specs=split, check_vma=check_vma)
    if check_vma:
        assert all(x.shape == (8,) for x in jax.eval_shape(sharded, h, g))
        return
    check(quick(sharded)(h, g), truth(h, g), (8, 20, 16, 16))


# Compiling needs a GPU, but lowering does not. It checks that every operation has a rule.
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    "shape", [(4, 512, 768, 2304), (4, 197, 768, 50257), (4, 197, 9000, 8), (1, 1, 1, 1)]
)
@pytest.mark.parametrize("dtypes", [DTYPES, ("bfloat16",) * 2, ("float32",) * 2])
def test_kernel_lowers_for_a_gpu(dtypes, shape):
    n, t, *widths = shape
    h, g = map(jax.ShapeDtypeStruct, [(n, t, width) for width in widths], map(jnp.dtype, dtypes))
    gpu = AbstractDevice(device_kind="NVIDIA H200", num_cores=None, platform="gpu")
    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=gpu)):
        traced = jax.jit(functools.partial(gram_sums, tf32=True)).trace(h, g)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "xla.gpu.triton" in text


def test_float32_is_taken_only_as_tf32():
    h, g = operands((1, 4, 8, 8), ("float32", "float32"))
    with pytest.raises(ValueError, match=r"h is float32, but the kernel .* tf32=True"):
        gram_sums(h, g, interpret=True)
    with pytest.raises(ValueError, match="g is float16"):
        gram_sums(h, g.astype("float16"), tf32=True, interpret=True)


@pytest.mark.parametrize("shapes", [((4, 8), (4, 8)), ((2, 4, 8), (2, 5, 8)), ((2, 4), (2, 4, 3))])
def test_rows_that_do_not_pair_are_refused(shapes):
    h, g = (jnp.zeros(shape, jnp.bfloat16) for shape in shapes)
    with pytest.raises(ValueError, match=r"Pass h as \(N, T, D\) and g as \(N, T, K\)"):
        gram_sums(h, g, interpret=True)


def test_without_the_backend_the_error_names_the_other_form(monkeypatch):
    monkeypatch.setattr(gram_kernel, "triton", None)
    h, g = operands((1, 4, 8, 8))
    with pytest.raises(NotImplementedError, match="Use xla_gram_sums"):
        gram_sums(h, g)


def test_no_kernel_on_the_cpu():
    assert not available(jnp.bfloat16, jnp.bfloat16)


@pytest.fixture
def hopper(monkeypatch):
    """A jax that finds one Hopper GPU."""
    device = types.SimpleNamespace(compute_capability="9.0")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    return device


BF16, F16, F32 = (jnp.dtype(d) for d in ("bfloat16", "float16", "float32"))


@pytest.mark.parametrize(
    ("dtypes", "tf32", "expected"),
    [
        ((BF16, BF16), False, True),
        ((F32, F32), True, True),
        ((BF16, F32), True, True),
        ((BF16, F32), False, False),
        ((F32, F32), False, False),
        ((F16, BF16), True, False),
        ((BF16, F16), True, False),
    ],
)
def test_available_for_dtypes_that_tensor_cores_multiply_exactly(hopper, dtypes, tf32, expected):
    assert available(*dtypes, tf32=tf32) is expected


@pytest.mark.parametrize("found", ["8.0", "10.0", "gfx942", None])
def test_not_available_on_other_architectures(hopper, found):
    hopper.compute_capability = found
    assert not available(BF16, BF16)


def test_not_available_without_the_backend(hopper, monkeypatch):
    monkeypatch.setattr(gram_kernel, "triton", None)
    assert not available(BF16, BF16)


@pytest.mark.parametrize("version", [(0, 10, 2), (0, 11, 0), (1, 0, 0)])
def test_available_whatever_the_version_says(hopper, monkeypatch, version):
    monkeypatch.setattr(jax, "__version_info__", version)
    assert available(BF16, BF16)


@pytest.mark.parametrize("check_vma", [True, False])
def test_with_several_devices_available_on_one_shard_only(hopper, monkeypatch, check_vma):
    monkeypatch.setattr(jax, "device_count", lambda: 8)
    assert not available(BF16, BF16)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    split, found = PartitionSpec("data"), []

    def shard(x):
        found.append(available(BF16, BF16))
        return x

    sharded = jax.shard_map(shard, mesh=mesh, in_specs=split, out_specs=split, check_vma=check_vma)
    jax.eval_shape(sharded, jax.ShapeDtypeStruct((8,), jnp.float32))
    assert found and all(found)
    assert not available(BF16, BF16)
