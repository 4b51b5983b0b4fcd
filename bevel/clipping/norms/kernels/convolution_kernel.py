"""Two Pallas kernels for products of shifted images with cotangents that never reach memory.

In the flat layout of `convolution_geometry.py`, every kernel offset has a place (phase, shift). The
gradient of a convolution's kernel for example n at that offset is the product over rows

    W_n[place] = x[phase, n, shift : shift + length]^T g[n]                               (C, K)

The kernels compute sum_place |W_n[place]|^2 for each n, and sum_n factor_n W_n[place] per place.

Rows are contiguous, so entry (t, c) of the slice at a place is entry t C + start of the flat image,
with start = (phase N size + shift) C + c, plus an offset for n. Over all places and channels, these
starts are the columns of one wide left operand, which is never copied:

    (length, places C)    with    places C x K    entries in its product with g[n].

Programs compute tiles of that product for any C: a tile may hold several places, or part of one.
Both kernels load blocks of rows, multiply them and keep a tile in registers.

`shifted_product_squares`: a program computes one tile of one example and writes its sum of squares.

`shifted_weighted_sum`: a program computes one tile of the sum over a share of the examples. The
product of an example is multiplied by its factor in float32, in registers, and then added, so no
factor is rounded to the dtype of g. XLA sums over the shares.

Rounding. Products of bfloat16 or TF32 values are exact in float32. An entry of a product goes
through at most `length` roundings in a row, and its square through at most places C K + 1 more. The
weighted sum adds one for the factor and one for each example. Tensor cores truncate when they add,
so one rounding costs up to 2 u there. Nothing is scaled.

Examples do not mix: a non-finite value affects only the squares of its own example. It affects the
weighted sum even if its factor is 0. There are no branches around products: see `gram_kernel.py`.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from bevel.clipping.norms.kernels import gram_kernel
from bevel.clipping.norms.kernels.gram_kernel import (
    ALIGNMENT,
    aligned,
    float32_like,
    multiply,
    pl,
    step_size,
    supports,
    triton,
)

Places = Sequence[tuple[int, int]]

LARGEST = 2**31  # entries are addressed by 32-bit offsets
# The number of processors of the GPU, and how many programs each should run.
PROCESSORS, PROGRAMS = 132, 6


@dataclasses.dataclass(frozen=True)
class Tiling:
    """How the product is tiled. Affects speed only. Sizes are powers of two, at least 16."""

    rows: int = 128  # of the product (places C, K), per program
    columns: int = 128
    block: int = 64  # rows of x and g per step; half as many in float32
    num_warps: int = 8
    num_stages: int = 3  # steps whose loads are in flight at a time


def tiling(left: int, right: int, length: int) -> Tiling:
    """The tiling for a product (left, right) over `length` rows."""
    rows, columns = (
        min(128, max(least, 1 << max(n - 1, 0).bit_length()))
        for n, least in ((left, 64), (right, 16))
    )
    warps = 8 if rows * columns >= 128 * 128 else 4
    # The longest of the blocks with the least padding.
    block = min((64, 32), key=lambda n: -(-length // n) * n)
    return Tiling(rows, columns, block, warps, num_stages=3 if block == 64 else 5)


def available(
    x: jax.Array | jax.ShapeDtypeStruct,
    g: jax.Array | jax.ShapeDtypeStruct,
    *,
    tf32: bool = False,
) -> bool:
    """Whether the kernels can be compiled here for operands of these shapes and dtypes.

    The conditions on dtypes are those of `gram_kernel.available`. In addition, each operand must
    have fewer than 2^31 entries after its rows are padded to multiples of 16 bytes.
    """
    return gram_kernel.available(x.dtype, g.dtype, tf32=tf32) and all(map(_is_addressable, (x, g)))


def _is_addressable(x: jax.Array | jax.ShapeDtypeStruct) -> bool:
    unit = ALIGNMENT // jnp.dtype(x.dtype).itemsize
    return math.prod(x.shape[:-1]) * -(-x.shape[-1] // unit) * unit < LARGEST


def shifted_product_squares(
    x: jax.Array,
    g: jax.Array,
    places: Places,
    *,
    tile: Tiling | None = None,
    tf32: bool = False,
    interpret: bool = False,
) -> jax.Array:
    """sum_place |x[phase, n, shift : shift + length]^T g[n]|^2 (N,), in float32.

    x is (phases, N, size, C) and g is (N, length, K). Both are bfloat16, or float32 if `tf32` says
    that their values are already TF32 values. No array of N C K entries is stored.
    """
    _check(x, g, places, tf32)
    if 0 in (*x.shape, *g.shape) or not places:
        return xla_shifted_product_squares(x, g, places)
    wide = _TiledProduct.of(x, g, places, tile)
    examples, down, across = g.shape[0], *wide.tiles
    call = pl.pallas_call(
        functools.partial(_squares_kernel, wide=wide),
        # Tiles first, so that concurrent programs share their example's rows in the cache.
        grid=(down, across, examples),
        out_specs=pl.BlockSpec((None, None, 1), lambda i, j, n: (n, i, j)),
        out_shape=float32_like(x, (examples, down, across)),
        compiler_params=wide.params,
        interpret=interpret,
        name="shifted_product_squares",
    )
    return jnp.sum(call(*wide.flat(x, g)), axis=(1, 2))


def xla_shifted_product_squares(x: jax.Array, g: jax.Array, places: Places) -> jax.Array:
    """`shifted_product_squares` in plain XLA, which stores N C K numbers."""
    total = jnp.zeros(g.shape[0], jnp.float32)
    for place in places:
        product = _xla_product(_shifted(x, g, place), g, (((1,), (1,)), ((0,), (0,))))
        total += jnp.sum(product * product, axis=(1, 2))
    return total


def shifted_weighted_sum(
    x: jax.Array,
    g: jax.Array,
    factor: jax.Array,
    places: Places,
    *,
    tile: Tiling | None = None,
    splits: int | None = None,
    tf32: bool = False,
    interpret: bool = False,
) -> jax.Array:
    """sum_n factor[n] x[phase, n, shift : shift + length]^T g[n] (places, C, K), in float32.

    x and g are as in `shifted_product_squares`. factor (N,) is float32 and is never rounded. The
    examples are summed in about `splits` shares of equal size, of which the last may be smaller.
    The default keeps the GPU busy. This needs `splits` times the memory of the result.
    """
    _check(x, g, places, tf32)
    if factor.shape != g.shape[:1] or factor.dtype != jnp.float32:
        raise ValueError(
            f"factor is {factor.dtype}{list(factor.shape)} for {g.shape[0]} examples. Pass one "
            "float32 number for each, because a rounded coefficient is a different coefficient."
        )
    if 0 in (*x.shape, *g.shape) or not places:
        return xla_shifted_weighted_sum(x, g, factor, places)
    # Narrow tiles, so that two accumulators of this size fit into the registers.
    wide = _TiledProduct.of(x, g, places, tile or Tiling(128, 64, 64, 4, 3))
    examples, (down, across) = g.shape[0], wide.tiles
    share = pl.cdiv(examples, splits or max(1, PROGRAMS * PROCESSORS // (down * across)))
    splits = pl.cdiv(examples, share)
    rows, columns = wide.tile.rows, wide.tile.columns
    call = pl.pallas_call(
        functools.partial(_weighted_kernel, wide=wide, examples=examples, share=share),
        # Tiles first here too, so that a share's rows are read from memory once.
        grid=(down, across, splits),
        out_specs=pl.BlockSpec((None, rows, columns), lambda i, j, s: (s, i, j)),
        out_shape=float32_like(x, (splits, down * rows, across * columns)),
        compiler_params=wide.params,
        interpret=interpret,
        name="shifted_weighted_sum",
    )
    # Examples that only fill up the last share have no rows. Their factor is 0.
    factor = jnp.pad(factor, (0, splits * share - examples))
    total = jnp.sum(call(*wide.flat(x, g), factor), axis=0)
    total = total[: wide.width].reshape(len(places), wide.x_pitch, -1)
    return total[:, : x.shape[3], : g.shape[2]]


def xla_shifted_weighted_sum(
    x: jax.Array, g: jax.Array, factor: jax.Array, places: Places
) -> jax.Array:
    """`shifted_weighted_sum` in plain XLA, with one more rounding, of factor times g."""
    if not places:
        return jnp.zeros((0, x.shape[3], g.shape[2]), jnp.float32)
    weighted = g.astype(jnp.float32) * factor[:, None, None]
    over = (((0, 1), (0, 1)), ((), ()))
    return jnp.stack(
        [_xla_product(_shifted(x, g, p).astype(jnp.float32), weighted, over) for p in places]
    )


def _shifted(x: jax.Array, g: jax.Array, place: tuple[int, int]) -> jax.Array:
    phase, shift = place
    return lax.slice_in_dim(x[phase], shift, shift + g.shape[1], axis=1)


def _xla_product(left: jax.Array, right: jax.Array, numbers: Any) -> jax.Array:
    return lax.dot_general(
        left,
        right,
        numbers,
        precision=lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )


def _check(x: jax.Array, g: jax.Array, places: Places, tf32: bool) -> None:
    if not triton:
        raise NotImplementedError(
            f"jax {jax.__version__} has no Triton backend for Pallas, which this kernel needs. Use "
            "xla_shifted_product_squares or xla_shifted_weighted_sum."
        )
    if x.ndim != 4 or g.ndim != 3 or x.shape[1] != g.shape[0]:
        raise ValueError(
            f"x is {x.shape} and g is {g.shape}, but the rows of one example are paired. Pass x as "
            "(phases, N, size, C) and g as (N, length, K), with groups folded into N."
        )
    for phase, shift in places:
        if not (0 <= phase < x.shape[0] and 0 <= shift <= x.shape[2] - g.shape[1]):
            raise ValueError(
                f"Place ({phase}, {shift}) with {g.shape[1]} rows of g is not inside x {x.shape}, "
                "so rows of another example would be read. Pass places and length of one layout."
            )
    for name, operand in (("x", x), ("g", g)):
        if not supports(operand.dtype, tf32):
            raise ValueError(
                f"{name} is {operand.dtype}, but the kernel multiplies only bfloat16 or TF32. Pass "
                "bfloat16, or float32 already rounded to TF32 with tf32=True, or use the xla_ form."
            )
        if not _is_addressable(operand):
            raise ValueError(
                f"{name} is {operand.shape}, but the kernel can address only 2^31 entries. Pass "
                "fewer examples at a time."
            )


@dataclasses.dataclass(frozen=True)
class _TiledProduct:
    """The product (places C, K) of one example, and its tiles."""

    starts: tuple[int, ...]  # of each place in the flat image
    x_pitch: int  # C, with the zeros that align rows
    g_pitch: int  # K, likewise
    size: int
    length: int
    tile: Tiling

    @classmethod
    def of(cls, x: jax.Array, g: jax.Array, places: Places, tile: Tiling | None) -> "_TiledProduct":
        _, examples, size, _ = x.shape
        pitches = [
            -(-a.shape[-1] * a.dtype.itemsize // ALIGNMENT) * ALIGNMENT // a.dtype.itemsize
            for a in (x, g)
        ]
        starts = tuple((phase * examples * size + shift) * pitches[0] for phase, shift in places)
        tile = tile or tiling(len(places) * pitches[0], g.shape[2], g.shape[1])
        tile = dataclasses.replace(tile, block=step_size(tile.block, x, g))
        return cls(starts, pitches[0], pitches[1], size, g.shape[1], tile)

    @property
    def width(self) -> int:
        """places C, with the zeros that align rows."""
        return len(self.starts) * self.x_pitch

    @property
    def tiles(self) -> tuple[int, int]:
        return pl.cdiv(self.width, self.tile.rows), pl.cdiv(self.g_pitch, self.tile.columns)

    @property
    def steps(self) -> int:
        """The number of blocks of rows of an example."""
        return pl.cdiv(self.length, self.tile.block)

    @property
    def params(self) -> Any:
        return triton.CompilerParams(num_warps=self.tile.num_warps, num_stages=self.tile.num_stages)

    def flat(self, x: jax.Array, g: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The operands with aligned rows, flattened to one dimension."""
        return aligned(x.reshape(-1, *x.shape[2:])).reshape(-1), aligned(g).reshape(-1)

    def x_columns(self, i: jax.Array, unit: int) -> "_Columns":
        """The columns of tile row `i`, contiguous and aligned in groups of `unit`."""
        index = _indices(i, self.tile.rows)
        place = lax.div(index, jnp.full_like(index, self.x_pitch))
        first = functools.reduce(
            jnp.add, (jnp.where(place == k, start, 0) for k, start in enumerate(self.starts))
        )
        offsets = first + (index - place * self.x_pitch)
        # The compiler cannot infer this through the choice of places.
        offsets = triton.max_contiguous(pl.multiple_of(offsets, unit), unit)
        inside = index < self.width if self.width % self.tile.rows else None
        return _Columns(offsets, inside, self.x_pitch)

    def g_columns(self, j: jax.Array) -> "_Columns":
        index = _indices(j, self.tile.columns)
        inside = index < self.g_pitch if self.g_pitch % self.tile.columns else None
        return _Columns(index, inside, self.g_pitch)


class _Columns(NamedTuple):
    """Columns of a flat matrix."""

    offsets: jax.Array  # where each column begins
    inside: jax.Array | None  # which columns exist; None: all
    pitch: int  # the distance between rows


def _indices(tile: jax.Array, size: int) -> jax.Array:
    return tile * size + lax.iota(jnp.int32, size)


def _squares_kernel(x_ref: Any, g_ref: Any, out_ref: Any, *, wide: _TiledProduct) -> None:
    """Computes one tile of one example's product."""
    i, j, n = (pl.program_id(axis) for axis in range(3))
    tile, product = wide.tile, _block_product(x_ref, g_ref, wide, i, j)

    def step(k: jax.Array, total: jax.Array) -> jax.Array:
        valid = None if wide.length % tile.block == 0 else wide.length - k * tile.block
        return total + product(n, k * tile.block, valid)

    zeros = jnp.zeros((tile.rows, tile.columns), jnp.float32)
    total = lax.fori_loop(0, wide.steps, step, zeros)
    out_ref[0] = jnp.sum(total * total)


def _weighted_kernel(
    x_ref: Any,
    g_ref: Any,
    factor_ref: Any,
    out_ref: Any,
    *,
    wide: _TiledProduct,
    examples: int,
    share: int,
) -> None:
    """Computes one tile of the sum over one share of the examples."""
    i, j, split = (pl.program_id(axis) for axis in range(3))
    tile, product = wide.tile, _block_product(x_ref, g_ref, wide, i, j)

    masked = wide.length % tile.block or examples % share

    def product_of(n: jax.Array, k: jax.Array) -> jax.Array:
        # `jnp.where` of two weakly typed numbers does not lower.
        row = lax.convert_element_type(k, jnp.int32) * tile.block
        valid = jnp.where(n < examples, wide.length - row, 0) if masked else None
        return product(n, row, valid)

    def of_example(k: jax.Array, total: jax.Array) -> jax.Array:
        n = split * share + k
        own = lax.fori_loop(0, wide.steps, lambda k, part: part + product_of(n, k), zeros)
        return total + factor_ref[n] * own

    zeros = jnp.zeros((tile.rows, tile.columns), jnp.float32)
    out_ref[...] = lax.fori_loop(0, share, of_example, zeros)


def _block_product(x_ref: Any, g_ref: Any, wide: _TiledProduct, i: jax.Array, j: jax.Array) -> Any:
    """Returns `(n, row, valid) -> product`: what a block of rows of example n adds to tile (i, j).

    The block begins at `row`. Only its first `valid` rows exist, or all if `valid` is None.
    """
    x_columns = wide.x_columns(i, ALIGNMENT // x_ref.dtype.itemsize)
    g_columns = wide.g_columns(j)

    def product(n: jax.Array, row: jax.Array, valid: jax.Array | None) -> jax.Array:
        x = _load(x_ref, x_columns, n * wide.size + row, wide.tile.block, valid)
        g = _load(g_ref, g_columns, n * wide.length + row, wide.tile.block, valid)
        return multiply(x, g, (0, 0))

    return product


def _load(ref: Any, columns: _Columns, row: jax.Array, count: int, valid: jax.Array | None) -> Any:
    """`count` rows of some columns, with zeros where there is no row or column."""
    rows = lax.broadcasted_iota(jnp.int32, (count, 1), 0)
    shape = (count, columns.offsets.size)
    index = (row + rows) * columns.pitch + columns.offsets[None, :]
    inside = [] if valid is None else [jnp.broadcast_to(rows < valid, shape)]
    if columns.inside is not None:
        inside.append(jnp.broadcast_to(columns.inside[None, :], shape))
    if not inside:
        return triton.load(ref.at[index])
    mask = functools.reduce(jnp.logical_and, inside)
    return triton.load(ref.at[index], mask=mask, other=jnp.zeros((), ref.dtype))
