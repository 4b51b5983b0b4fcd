"""Products of shifted images with cotangents that never reach memory: two Pallas kernels.

In the flat layout of `convolution_geometry.py` the gradient of a convolution's kernel for example n is, at the
offset whose place is (phase, shift), the product over rows

    W_n[place] = x[phase, n, shift : shift + length]^T g[n]                               (C, K)

Wanted are sum_place |W_n[place]|^2 for every n, and sum_n factor_n W_n[place] for every place.

Rows are contiguous, so entry (t, c) of the slice at a place is entry t C + start of the flat image,
start = (phase N size + shift) C + c, plus what n adds. Over all places and channels these starts
are the columns of one wide left operand, of which no copy is made,

    (length, places C)    with    places C x K    entries in its product with g[n],

and programs take tiles of that product, whatever C is: a tile may hold several places, or a part of
one. Both kernels load blocks of rows, multiply them and keep a tile in registers.

`shifted_product_squares`: a program takes one tile of one example and writes its sum of squares.

`shifted_weighted_sum`: a program takes one tile of the sum over a share of the examples. The
product of an example is multiplied by its factor in float32, in registers, and then added: no
factor is rounded to the dtype of g. XLA sums over the shares.

Rounding. Products of bfloat16 or of TF32 values are exact in float32. An entry of a product goes
through at most `length` roundings in a row; its square through places C K + 1 more at most. In the
weighted sum, one for the factor and one for each example come on top. Tensor cores
truncate where they add, so that one rounding costs up to 2 u there. Nothing is scaled.

Examples do not mix: a value that is not finite shows in the squares of its own example only, and in
the weighted sum even for a factor of 0. No branches around products: see `gram_kernel.py`.
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
    takes,
    triton,
)

Places = Sequence[tuple[int, int]]

LARGEST = 2**31  # entries are found by 32-bit offsets
# Of the GPU for which shares are counted, and how many programs each should have.
PROCESSORS, PROGRAMS = 132, 6


@dataclasses.dataclass(frozen=True)
class Tiling:
    """Speed only; sizes are powers of two, at least 16."""

    rows: int = 128  # of the product (places C, K), for one program
    columns: int = 128
    block: int = 64  # rows of x and g in one step; half as many in float32
    num_warps: int = 8
    num_stages: int = 3  # steps of loads under way at a time


def tiling(left: int, right: int, length: int) -> Tiling:
    """For a product (left, right) over `length` rows."""
    rows, columns = (
        min(128, max(least, 1 << max(n - 1, 0).bit_length()))
        for n, least in ((left, 64), (right, 16))
    )
    warps = 8 if rows * columns >= 128 * 128 else 4
    # Of the blocks with the least padding, the longest.
    block = min((64, 32), key=lambda n: -(-length // n) * n)
    return Tiling(rows, columns, block, warps, num_stages=3 if block == 64 else 5)


def available(
    x: jax.Array | jax.ShapeDtypeStruct,
    g: jax.Array | jax.ShapeDtypeStruct,
    *,
    tf32: bool = False,
) -> bool:
    """Whether the kernels can be compiled here for operands of these shapes and dtypes.

    As `gram_kernel.available` for the dtypes; and neither may have 2^31 entries, once its rows are
    padded to multiples of 16 bytes.
    """
    return gram_kernel.available(x.dtype, g.dtype, tf32=tf32) and all(map(_reachable, (x, g)))


def _reachable(x: jax.Array | jax.ShapeDtypeStruct) -> bool:
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

    x is (phases, N, size, C) and g (N, length, K), in bfloat16 or, where the caller says by `tf32`
    that they are TF32 values already, float32. Nothing as large as C K for each n is kept.
    """
    _check(x, g, places, tf32)
    if 0 in (*x.shape, *g.shape) or not places:
        return xla_shifted_product_squares(x, g, places)
    wide = _Wide.of(x, g, places, tile)
    examples, down, across = g.shape[0], *wide.tiles
    call = pl.pallas_call(
        functools.partial(_squares_kernel, wide=wide),
        # Tiles first: programs that run together share their example's rows in the cache.
        grid=(down, across, examples),
        out_specs=pl.BlockSpec((None, None, 1), lambda i, j, n: (n, i, j)),
        out_shape=float32_like(x, (examples, down, across)),
        compiler_params=wide.params,
        interpret=interpret,
        name="shifted_product_squares",
    )
    return jnp.sum(call(*wide.flat(x, g)), axis=(1, 2))


def xla_shifted_product_squares(x: jax.Array, g: jax.Array, places: Places) -> jax.Array:
    """What `shifted_product_squares` gives, by XLA alone: N C K numbers in memory."""
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

    x and g as in `shifted_product_squares`; factor (N,) is float32, and stays so. The examples are
    summed in `splits` shares (about: shares are equal, but for the last), by default as many as
    keep the GPU busy; that takes `splits` times the memory of the result.
    """
    _check(x, g, places, tf32)
    if factor.shape != g.shape[:1] or factor.dtype != jnp.float32:
        raise ValueError(
            f"factor is {factor.dtype}{list(factor.shape)} for {g.shape[0]} examples: pass one "
            "float32 number for each, since a coefficient that is rounded is another coefficient."
        )
    if 0 in (*x.shape, *g.shape) or not places:
        return xla_shifted_weighted_sum(x, g, factor, places)
    # Narrow tiles: two accumulators of this size fit into the registers.
    wide = _Wide.of(x, g, places, tile or Tiling(128, 64, 64, 4, 3))
    examples, (down, across) = g.shape[0], wide.tiles
    share = pl.cdiv(examples, splits or max(1, PROGRAMS * PROCESSORS // (down * across)))
    splits = pl.cdiv(examples, share)
    rows, columns = wide.tile.rows, wide.tile.columns
    call = pl.pallas_call(
        functools.partial(_weighted_kernel, wide=wide, examples=examples, share=share),
        # Tiles first here too: a share's rows are read from memory once.
        grid=(down, across, splits),
        out_specs=pl.BlockSpec((None, rows, columns), lambda i, j, s: (s, i, j)),
        out_shape=float32_like(x, (splits, down * rows, across * columns)),
        compiler_params=wide.params,
        interpret=interpret,
        name="shifted_weighted_sum",
    )
    # Examples that only fill the last share up have no rows, and no factor either.
    factor = jnp.pad(factor, (0, splits * share - examples))
    total = jnp.sum(call(*wide.flat(x, g), factor), axis=0)
    total = total[: wide.width].reshape(len(places), wide.x_pitch, -1)
    return total[:, : x.shape[3], : g.shape[2]]


def xla_shifted_weighted_sum(
    x: jax.Array, g: jax.Array, factor: jax.Array, places: Places
) -> jax.Array:
    """What `shifted_weighted_sum` gives, by XLA alone, but for one rounding of factor g."""
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
            f"jax {jax.__version__} has no Triton backend for Pallas, which this kernel needs; "
            "use xla_shifted_product_squares or xla_shifted_weighted_sum."
        )
    if x.ndim != 4 or g.ndim != 3 or x.shape[1] != g.shape[0]:
        raise ValueError(
            f"x is {x.shape} and g is {g.shape}, but the rows of one example are paired: pass x as "
            "(phases, N, size, C) and g as (N, length, K), with groups folded into N."
        )
    for phase, shift in places:
        if not (0 <= phase < x.shape[0] and 0 <= shift <= x.shape[2] - g.shape[1]):
            raise ValueError(
                f"Place ({phase}, {shift}) with {g.shape[1]} rows of g is not inside x {x.shape}: "
                "rows of another example would be read. Pass places and length of one layout."
            )
    for name, operand in (("x", x), ("g", g)):
        if not takes(operand.dtype, tf32):
            raise ValueError(
                f"{name} is {operand.dtype}, and the kernel multiplies bfloat16 or TF32 only: pass "
                "bfloat16, or float32 already rounded to TF32 and tf32=True, or use the xla_ form."
            )
        if not _reachable(operand):
            raise ValueError(
                f"{name} is {operand.shape}, and the kernel reaches entries below 2^31 only: pass "
                "fewer examples at a time."
            )


@dataclasses.dataclass(frozen=True)
class _Wide:
    """The product (places C, K) of one example, and its tiles."""

    starts: tuple[int, ...]  # of each place in the flat image
    x_pitch: int  # C and K, with the zeros that align rows
    g_pitch: int
    size: int
    length: int
    tile: Tiling

    @classmethod
    def of(cls, x: jax.Array, g: jax.Array, places: Places, tile: Tiling | None) -> "_Wide":
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
        """places C."""
        return len(self.starts) * self.x_pitch

    @property
    def tiles(self) -> tuple[int, int]:
        return pl.cdiv(self.width, self.tile.rows), pl.cdiv(self.g_pitch, self.tile.columns)

    @property
    def steps(self) -> int:
        """Blocks of rows of an example."""
        return pl.cdiv(self.length, self.tile.block)

    @property
    def params(self) -> Any:
        return triton.CompilerParams(num_warps=self.tile.num_warps, num_stages=self.tile.num_stages)

    def flat(self, x: jax.Array, g: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The operands, aligned, in one dimension."""
        return aligned(x.reshape(-1, *x.shape[2:])).reshape(-1), aligned(g).reshape(-1)

    def x_columns(self, i: jax.Array, unit: int) -> "_Columns":
        """Those of tile row `i`; neighbours lie together `unit` at a time, aligned."""
        index = _indices(i, self.tile.rows)
        place = lax.div(index, jnp.full_like(index, self.x_pitch))
        first = functools.reduce(
            jnp.add, (jnp.where(place == k, start, 0) for k, start in enumerate(self.starts))
        )
        offsets = first + (index - place * self.x_pitch)
        # The compiler does not see it through a choice of places.
        offsets = triton.max_contiguous(pl.multiple_of(offsets, unit), unit)
        inside = index < self.width if self.width % self.tile.rows else None
        return _Columns(offsets, inside, self.x_pitch)

    def g_columns(self, j: jax.Array) -> "_Columns":
        index = _indices(j, self.tile.columns)
        inside = index < self.g_pitch if self.g_pitch % self.tile.columns else None
        return _Columns(index, inside, self.g_pitch)


class _Columns(NamedTuple):
    """Of a flat matrix: where each begins, whether it is one at all, and how far rows are apart."""

    offsets: jax.Array
    inside: jax.Array | None
    pitch: int


def _indices(tile: jax.Array, size: int) -> jax.Array:
    return tile * size + lax.iota(jnp.int32, size)


def _squares_kernel(x_ref: Any, g_ref: Any, out_ref: Any, *, wide: _Wide) -> None:
    """One tile of one example's product."""
    i, j, n = (pl.program_id(axis) for axis in range(3))
    tile, product = wide.tile, _block_product(x_ref, g_ref, wide, i, j)

    def step(k: jax.Array, total: jax.Array) -> jax.Array:
        left = None if wide.length % tile.block == 0 else wide.length - k * tile.block
        return total + product(n, k * tile.block, left)

    zeros = jnp.zeros((tile.rows, tile.columns), jnp.float32)
    total = lax.fori_loop(0, wide.steps, step, zeros)
    out_ref[0] = jnp.sum(total * total)


def _weighted_kernel(
    x_ref: Any,
    g_ref: Any,
    factor_ref: Any,
    out_ref: Any,
    *,
    wide: _Wide,
    examples: int,
    share: int,
) -> None:
    """One tile of the sum over one share of the examples."""
    i, j, split = (pl.program_id(axis) for axis in range(3))
    tile, product = wide.tile, _block_product(x_ref, g_ref, wide, i, j)

    masked = wide.length % tile.block or examples % share

    def product_of(n: jax.Array, k: jax.Array) -> jax.Array:
        # A choice between two numbers of weak type does not lower.
        row = lax.convert_element_type(k, jnp.int32) * tile.block
        left = jnp.where(n < examples, wide.length - row, 0) if masked else None
        return product(n, row, left)

    def of_example(k: jax.Array, total: jax.Array) -> jax.Array:
        n = split * share + k
        whole = lax.fori_loop(0, wide.steps, lambda k, part: part + product_of(n, k), zeros)
        return total + factor_ref[n] * whole

    zeros = jnp.zeros((tile.rows, tile.columns), jnp.float32)
    out_ref[...] = lax.fori_loop(0, share, of_example, zeros)


def _block_product(x_ref: Any, g_ref: Any, wide: _Wide, i: jax.Array, j: jax.Array) -> Any:
    """(n, row, left) -> the part of tile (i, j) that a block of rows of example n adds.

    The block begins at `row`, and `left` rows of it are there (None: all).
    """
    x_columns = wide.x_columns(i, ALIGNMENT // x_ref.dtype.itemsize)
    g_columns = wide.g_columns(j)

    def product(n: jax.Array, row: jax.Array, left: jax.Array | None) -> jax.Array:
        x = _load(x_ref, x_columns, n * wide.size + row, wide.tile.block, left)
        g = _load(g_ref, g_columns, n * wide.length + row, wide.tile.block, left)
        return multiply(x, g, (0, 0))

    return product


def _load(ref: Any, columns: _Columns, row: jax.Array, count: int, left: jax.Array | None) -> Any:
    """`count` rows of some columns, with zeros where there is no row left or no column."""
    rows = lax.broadcasted_iota(jnp.int32, (count, 1), 0)
    shape = (count, columns.offsets.size)
    index = (row + rows) * columns.pitch + columns.offsets[None, :]
    inside = [] if left is None else [jnp.broadcast_to(rows < left, shape)]
    if columns.inside is not None:
        inside.append(jnp.broadcast_to(columns.inside[None, :], shape))
    if not inside:
        return triton.load(ref.at[index])
    mask = functools.reduce(jnp.logical_and, inside)
    return triton.load(ref.at[index], mask=mask, other=jnp.zeros((), ref.dtype))
