"""A Pallas kernel for sums over Gram matrices that never reach memory, and the same in plain XLA.

For one example with rows h (T, D) and g (T, K), Gh = h h^T and Gg = g g^T are T x T, and

    |sum_t h_t (x) g_t|^2 = sum_{t,s} (h_t . h_s) (g_t . g_s) = sum_{t,s} Gh[t,s] Gg[t,s].

Both matrices are symmetric. A sum over (t, s) of products of their entries is therefore the sum
over the diagonal tiles plus twice the sum over the tiles below the diagonal:

    sum_{i,j} X_ij = sum_i X_ii + 2 sum_{i>j} X_ij,      X_ij = sum over tile (i, j).

One program computes one pair of tiles i >= j of one example. It accumulates the tile of Gh over D
and that of Gg over K, multiplies them in registers and writes eight numbers. With m = ceil(T/tile),
it computes m (m + 1) / 2 of the m^2 tiles, a little more than half of the multiplications. Only 8
numbers per pair are written to memory, and XLA sums them.

The traces and the lengths come from the diagonal pairs. The kernel does not branch on whether a
pair is diagonal, because the compiler has been observed to miscompile loads inside a branch.

If g has many columns, the kernel sums chunks of them separately, so that no sum is long. S is
linear in Gg, so its parts add. The square of the sum of the roots of FG's parts bounds FG.

Rounding. Products of bfloat16 or TF32 values are exact in float32. An entry of Gh goes through at
most D roundings in a row, an entry of Gg through K, and their sum through 2 tile + m^2 + 8 more.
Tensor cores truncate when they add, so one rounding costs up to 2 u there. Nothing is scaled: the
caller must keep squares (traces, lengths) and fourth powers (the rest) within the range of float32.
A NaN in h or g makes every number computed from it NaN, within its example.

The kernel is compiled by the Triton backend of Pallas, for Hopper GPUs.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bevel.lazy import LazyModule
from bevel.sharding.types import on_one_device

# Imported when a kernel is first traced, because the import takes half a second.
pl: Any = LazyModule("jax.experimental.pallas")
triton: Any = LazyModule("jax.experimental.pallas.triton")

# If g has more columns than this, they are summed in chunks, so that no sum is long.
CHUNK = 8192
# Tile sizes fit the shared memory and registers of this architecture. Others use the XLA form.
COMPUTE_CAPABILITY = "9.0"
# Rows that start at a multiple of this many bytes are copied without passing through registers.
ALIGNMENT = 16


class GramSums(NamedTuple):
    """Sums for each of the N examples, in float32. t and s run over the rows of the example."""

    square: jax.Array  # S: sum_{t,s} Gh[t,s] Gg[t,s], the squared norm of sum_t h_t (x) g_t
    h_square: jax.Array  # FH: sum_{t,s} Gh[t,s]^2, or more where h is summed in chunks
    g_square: jax.Array  # FG: sum_{t,s} Gg[t,s]^2, likewise
    h_trace: jax.Array  # sum_t Gh[t,t]
    g_trace: jax.Array  # sum_t Gg[t,t]
    lengths: jax.Array  # A: sum_t sqrt(Gh[t,t] Gg[t,t]), likewise


def available(
    h_dtype: jax.typing.DTypeLike, g_dtype: jax.typing.DTypeLike, *, tf32: bool = False
) -> bool:
    """Whether the kernels can be compiled here for these dtypes.

    | situation                                            | result |
    | ---------------------------------------------------- | ------ |
    | no GPU, or a GPU of another architecture             | False  |
    | a jax without the Triton backend                     | False  |
    | several devices, outside of `shard_map`              | False  |
    | bfloat16                                             | True   |
    | float32 rounded to TF32 by the caller (`tf32=True`)  | True   |
    | any other dtype                                      | False  |
    """
    if jax.default_backend() != "gpu" or not all(supports(d, tf32) for d in (h_dtype, g_dtype)):
        return False
    if not on_one_device() or not triton:
        return False
    device = jax.local_devices()[0]
    return getattr(device, "compute_capability", None) == COMPUTE_CAPABILITY


def supports(dtype: jax.typing.DTypeLike, tf32: bool) -> bool:
    return np.dtype(dtype) == jnp.bfloat16 or (tf32 and np.dtype(dtype) == np.float32)


def gram_sums(
    h: jax.Array,
    g: jax.Array,
    *,
    tile: int | None = None,
    block_d: int = 64,
    num_warps: int | None = None,
    num_stages: int = 4,
    tf32: bool = False,
    interpret: bool = False,
) -> GramSums:
    """The sums over the Gram matrices of h (N, T, D) and g (N, T, K), without the matrices.

    The dtypes of h and g may differ. float32 is multiplied in TF32, and accepted only if `tf32`
    says that its values are already TF32 values. An operand whose rows do not start at multiples of
    16 bytes is copied once, with zeros after each row.

    The other options affect speed only. `tile` is the number of rows and columns of a Gram matrix
    per program (default 128, or 64 for T <= 64), and `block_d` the columns of h or g per step (half
    as many in float32). Both are powers of two. `num_warps` is 8 for tiles of 128 and 4 otherwise.
    `num_stages` is the number of steps whose loads are in flight at a time.
    """
    _check(h, g, tf32)
    if 0 in (*h.shape, *g.shape):
        return xla_gram_sums(h, g)
    tile = tile or (64 if h.shape[1] <= 64 else 128)
    warps = num_warps or (8 if tile >= 128 else 4)
    params = triton.CompilerParams(num_warps=warps, num_stages=num_stages)
    if h.shape[2] > max(CHUNK, g.shape[2]):
        options = {"tile": tile, "block_d": block_d, "num_warps": warps, "num_stages": num_stages}
        s, gg, hh, tg, th, a = gram_sums(g, h, tf32=tf32, interpret=interpret, **options)
        return GramSums(s, hh, gg, th, tg, a)
    out = _gram_partials(aligned(h), aligned(g), tile, block_d, params, interpret)
    square, h_square, g_square, h_trace, g_trace, lengths = jnp.unstack(
        jnp.sum(out[..., :6], axis=1), axis=-1
    )
    # (N, chunks): the sums of h are the same in each chunk. For Gg, add the roots of the parts.
    g_square = jnp.square(jnp.sum(jnp.sqrt(g_square), axis=1))
    parts = [jnp.sum(x, axis=1) for x in (square, g_trace, lengths)]
    return GramSums(parts[0], h_square[:, 0], g_square, h_trace[:, 0], *parts[1:])


def xla_gram_sums(h: jax.Array, g: jax.Array) -> GramSums:
    """`gram_sums` in plain XLA, which stores T x T matrices, for any dtype up to float32."""
    gh, gg = _gram_matrices(h), _gram_matrices(g)
    dh, dg = (jnp.diagonal(x, axis1=1, axis2=2) for x in (gh, gg))
    lengths = jnp.sqrt(dh) * jnp.sqrt(dg)

    def over(x: jax.Array) -> jax.Array:
        return jnp.sum(x, axis=tuple(range(1, x.ndim)))

    sums = (over(x) for x in (gh * gg, gh * gh, gg * gg, dh, dg, lengths))
    return GramSums._make(sums)


def _gram_matrices(x: jax.Array) -> jax.Array:
    """(N, T, T) in float32."""
    return lax.dot_general(
        x,
        x,
        (((2,), (2,)), ((0,), (0,))),
        precision=lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )


def _check(h: jax.Array, g: jax.Array, tf32: bool) -> None:
    if not triton:
        raise NotImplementedError(
            f"jax {jax.__version__} has no Triton backend for Pallas, which this kernel needs. "
            "Use xla_gram_sums."
        )
    if h.ndim != 3 or g.ndim != 3 or h.shape[:2] != g.shape[:2]:
        raise ValueError(
            f"h is {h.shape} and g is {g.shape}, but the rows of one example are paired. Pass h "
            "as (N, T, D) and g as (N, T, K), with the other row axes folded into T."
        )
    for name, x in (("h", h), ("g", g)):
        if not supports(x.dtype, tf32):
            raise ValueError(
                f"{name} is {x.dtype}, but the kernel multiplies only bfloat16 or TF32. Pass "
                "bfloat16, or float32 already rounded to TF32 with tf32=True, or use the xla_ form."
            )


def aligned(x: jax.Array) -> jax.Array:
    """`x` with zeros after each row, so that rows start at multiples of `ALIGNMENT` bytes."""
    rest = -x.shape[2] % (ALIGNMENT // x.dtype.itemsize)
    if not rest:
        return x
    return lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), (0, 0, 0), (0, rest, 0)])


def float32_like(x: jax.Array, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    """The type of a float32 array that varies over the same manual axes as `x`."""
    kind = jax.typeof(x).manual_axis_type
    return jax.ShapeDtypeStruct(shape, jnp.float32, manual_axis_type=kind)


def _gram_partials(
    h: jax.Array, g: jax.Array, tile: int, block: int, params: Any, interpret: bool
) -> jax.Array:
    """What each pair of tiles adds to the fields of `GramSums`: (N, pairs, chunks, 8)."""
    (examples, rows, inner), outer = h.shape, g.shape[2]
    count, chunks = pl.cdiv(rows, tile), pl.cdiv(outer, CHUNK)
    pairs = count * (count + 1) // 2
    call = pl.pallas_call(
        functools.partial(_gram_kernel, tile=tile, block=block, chunks=chunks),
        # Pairs first, so that concurrent programs share their example's rows in the cache.
        grid=(pairs, chunks, examples),
        in_specs=[
            pl.BlockSpec((None, rows, inner), lambda pair, chunk, n: (n, 0, 0)),
            pl.BlockSpec((None, rows, outer), lambda pair, chunk, n: (n, 0, 0)),
        ],
        out_specs=pl.BlockSpec((None, None, None, 8), lambda pair, chunk, n: (n, pair, chunk, 0)),
        out_shape=float32_like(h, (examples, pairs, chunks, 8)),
        compiler_params=params,
        interpret=interpret,
        name="gram_sums",
    )
    return call(h, g)


def _gram_kernel(
    h_ref: Any, g_ref: Any, out_ref: Any, *, tile: int, block: int, chunks: int
) -> None:
    """Computes one pair of tiles of one example, over one chunk of the columns of g."""
    i, j = triangle(pl.program_id(0))
    gh = _lower_tile(h_ref, i, j, tile, block)
    gg = _lower_tile(g_ref, i, j, tile, block, pl.program_id(1) if chunks > 1 else None)
    # No branch: every tile is computed in the same way, and off-diagonal tiles add 0 to the traces.
    same = (i == j).astype(jnp.float32)
    times = 2 - same
    dh, dg = _diagonal(gh), _diagonal(gg)
    squares = [times * jnp.sum(gh * gg), times * jnp.sum(gh * gh), times * jnp.sum(gg * gg)]
    lengths = jnp.sum(jnp.sqrt(jnp.maximum(dh, 0)) * jnp.sqrt(jnp.maximum(dg, 0)))
    traces = [same * jnp.sum(dh), same * jnp.sum(dg), same * lengths]
    _write(out_ref, [*squares, *traces, *[jnp.float32(0)] * 2])


def triangle(p: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(i, j) with i >= j, for p = i (i + 1) / 2 + j."""
    i = ((jnp.sqrt(8 * p.astype(jnp.float32) + 1) - 1) / 2).astype(jnp.int32)
    # The root is rounded, so i may be off by one for large p.
    i = jnp.where((i * (i + 1)) >> 1 > p, i - 1, i)
    i = jnp.where(((i + 1) * (i + 2)) >> 1 <= p, i + 1, i)
    return i, p - ((i * (i + 1)) >> 1)


def _lower_tile(
    ref: Any, i: jax.Array, j: jax.Array, tile: int, block: int, chunk: jax.Array | None = None
) -> jax.Array:
    """Tile (i, j) of the Gram matrix of ref (T, D), over all its columns or one chunk of them."""
    block = step_size(block, ref)

    def step(columns: _Part, total: jax.Array) -> jax.Array:
        left, right = (_load(ref, _part(ref.shape[0], tile, k), columns) for k in (i, j))
        return total + multiply(left, right, (1, 1))

    zeros = jnp.zeros((tile, tile), jnp.float32)
    return _over_parts(step, ref.shape[1], block, zeros, chunk)


def _diagonal(x: jax.Array) -> jax.Array:
    row, column = (lax.broadcasted_iota(jnp.int32, x.shape, axis) for axis in (0, 1))
    return jnp.sum(jnp.where(row == column, x, 0), axis=1)


class _Part(NamedTuple):
    """`size` indices from `start`, of which only those below `limit` exist, if it is set."""

    start: jax.Array
    size: int
    limit: int | None


def _part(length: int, size: int, index: jax.Array) -> _Part:
    """Part number `index` of `length`, split into parts of `size`. The last may be shorter."""
    return _Part(index * size, size, length if length % size else None)


def step_size(block: int, *refs: Any) -> int:
    """`block` for bfloat16 and half of it for float32, so that both use as much shared memory."""
    return block * 2 // max(ref.dtype.itemsize for ref in refs)


def _over_parts(
    step: Callable[[_Part, Any], Any], length: int, size: int, carry: Any, chunk: Any = None
) -> Any:
    """Runs `step` over the parts of `length`, or of one chunk of it, and returns the carry."""
    first, last = 0, pl.cdiv(length, size)
    if chunk is not None:
        first = chunk * (CHUNK // size)
        last = jnp.minimum(first + CHUNK // size, last)
    return lax.fori_loop(first, last, lambda k, c: step(_part(length, size, k), c), carry)


def _load(ref: Any, rows: _Part, columns: _Part) -> jax.Array:
    """A block of ref, with zeros beyond its limits."""
    view = ref.at[pl.ds(rows.start, rows.size), pl.ds(columns.start, columns.size)]
    shape = (rows.size, columns.size)
    inside = [
        along.start + lax.broadcasted_iota(jnp.int32, shape, axis) < along.limit
        for axis, along in enumerate((rows, columns))
        if along.limit is not None
    ]
    if not inside:
        return triton.load(view)
    mask = functools.reduce(jnp.logical_and, inside)
    return triton.load(view, mask=mask, other=jnp.zeros((), ref.dtype))


def multiply(left: jax.Array, right: jax.Array, axes: tuple[int, int]) -> jax.Array:
    """Contracts one axis of each of two blocks on tensor cores, with float32 as TF32."""
    dtype = left.dtype if left.dtype == right.dtype else np.dtype(np.float32)
    return lax.dot_general(
        left.astype(dtype),
        right.astype(dtype),
        (((axes[0],), (axes[1],)), ((), ())),
        precision=lax.Precision.HIGH,
        preferred_element_type=jnp.float32,
    )


def _write(ref: Any, values: list[jax.Array]) -> None:
    for k, value in enumerate(values):
        ref[k] = value
