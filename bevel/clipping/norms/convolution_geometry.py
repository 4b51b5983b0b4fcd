"""The sizes of a convolution of one example, and image layouts for its matrix products.

One matrix product per kernel offset needs no patches in memory. The padded image is split into
`stride` phases, within which an offset is a shift. Each phase is laid out flat, and g on the same
grid, with zeros where there is no output. An offset is then a slice of the flat image. With
`stack`, the offsets along the last `stack` spatial dimensions are concatenated in the channels
instead. That makes fewer and wider products with fewer zeros in g, but copies the image once per
concatenated offset.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

NO_PADDING = (0, 0, 0)  # for `lax.pad`


class Dimension(NamedTuple):
    """One spatial dimension."""

    size: int
    window: int
    out: int
    stride: int
    dilation: int  # of the window
    image_dilation: int
    low: int  # padding before the image; the padding after it follows from `out`

    @property
    def depth(self) -> int:
        """Length of one phase of the padded image: the outputs plus the largest shift."""
        return self.out + (self.window - 1) * self.dilation // self.stride

    @property
    def pad(self) -> tuple[int, int, int]:
        """The `lax.pad` configuration that makes the image `depth * stride` long."""
        end = self.low + (self.size - 1) * self.image_dilation + 1
        return self.low, self.depth * self.stride - end, self.image_dilation - 1

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """(shift, phase) of every offset."""
        return [divmod(o * self.dilation, self.stride) for o in range(self.window)]


@dataclasses.dataclass(frozen=True)
class ConvolutionGeometry:
    """`conv_general_dilated` of one example, with the kernel as operand 1 and no batch groups."""

    specs: tuple[tuple[int, ...], ...]  # of image, kernel and result, as in `dimension_numbers`
    images: int  # N
    groups: int  # G
    channels: int  # C, of one group
    features: int  # K, of one group
    dims: tuple[Dimension, ...]

    @classmethod
    def of(
        cls, params: Mapping[str, Any], lhs: Sequence[int], rhs: Sequence[int], out: Sequence[int]
    ) -> "ConvolutionGeometry":
        """From the parameters of the equation and the shapes of its operands and result."""
        if (count := params["batch_group_count"]) != 1:
            raise ValueError(
                f"A convolution with batch_group_count={count} spreads one example over several "
                "groups, so it has no product per offset. Materialise its gradients instead."
            )
        groups = params["feature_group_count"]
        specs = tuple(tuple(spec) for spec in params["dimension_numbers"])
        lhs_spec, rhs_spec, _ = specs
        shapes = zip((lhs, rhs, out), specs, strict=True)
        sizes = [[shape[i] for i in spec[2:]] for shape, spec in shapes]
        names = ("window_strides", "rhs_dilation", "lhs_dilation")
        options = [params[name] for name in names] + [[low for low, _ in params["padding"]]]
        dims = tuple(Dimension(*row) for row in zip(*sizes, *options, strict=True))
        channels, features = rhs[rhs_spec[1]], rhs[rhs_spec[0]] // groups
        return cls(specs, lhs[lhs_spec[0]], groups, channels, features, dims)

    @property
    def positions(self) -> int:
        """P: how many outer products one example's gradient sums."""
        return self.images * math.prod(d.out for d in self.dims)

    @property
    def pixels(self) -> int:
        return self.images * math.prod(d.size for d in self.dims)

    @property
    def window(self) -> tuple[int, ...]:
        return tuple(d.window for d in self.dims)

    @property
    def kernel(self) -> tuple[int, ...]:
        """The shape of the kernel."""
        sizes = (self.groups * self.features, self.channels, *self.window)
        return tuple(sizes[self.specs[1].index(i)] for i in range(len(sizes)))

    @property
    def empty(self) -> bool:
        """Whether there is nothing to sum, or the kernel has no entries. Then it has no layout."""
        return 0 in (self.positions, self.pixels, *self.kernel)

    def image(self, x: jax.Array) -> jax.Array:
        """x (B, *lhs shape) as (B, N, sizes..., G, C)."""
        return _by_group(x, self.specs[0], self.groups)

    def cotangent(self, g: jax.Array) -> jax.Array:
        """g (B, *out shape) as (B, N, outs..., G, K)."""
        return _by_group(g, self.specs[2], self.groups)


def _by_group(x: jax.Array, spec: Sequence[int], groups: int) -> jax.Array:
    x = jnp.transpose(x, (0, spec[0] + 1, *(i + 1 for i in spec[2:]), spec[1] + 1))
    return x.reshape(*x.shape[:-1], groups, x.shape[-1] // groups)


class ImageLayout:
    """The flat layout, with the offsets of the last `stack` dimensions in the channels."""

    def __init__(self, geometry: ConvolutionGeometry, stack: int):
        self.geometry, dims = geometry, geometry.dims
        self.flat, self.stacked = dims[: len(dims) - stack], dims[len(dims) - stack :]
        grid = [d.depth for d in self.flat] + [d.out for d in self.stacked]
        weights = [math.prod(grid[i + 1 :]) for i in range(len(self.flat))]
        offsets = list(itertools.product(*(d.offsets for d in self.flat)))
        phases = [tuple(phase for _, phase in offset) for offset in offsets]
        self.phases = sorted(set(phases))
        # The place of each offset, in order: its phase, and its shift in the flat image.
        self.places = [
            (self.phases.index(phase), sum(s * w for (s, _), w in zip(steps, weights, strict=True)))
            for phase, steps in zip(phases, offsets, strict=True)
        ]
        self.width = math.prod(d.window for d in self.stacked)  # offsets in the channels
        self.size = geometry.images * math.prod(grid)
        # The slices that are multiplied extend from the first output to the last.
        self.length = self.size - max(shift for _, shift in self.places)

    def image(self, x: jax.Array) -> jax.Array:
        """x (B, N, sizes..., G, C) as (phases, B, G, size, width * C)."""
        x = padded(x, [d.pad for d in self.geometry.dims])[..., None, :]
        for axis in reversed(range(len(self.flat), len(self.geometry.dims))):
            x = _concatenate_windows(x, axis + 2, self.geometry.dims[axis])
        shape = (x.shape[0], self.size, self.geometry.groups, self.width * self.geometry.channels)
        strides = [d.stride for d in self.flat]
        cuts = [
            [slice(start, None, stride) for start, stride in zip(phase, strides, strict=True)]
            for phase in self.phases
        ]
        return jnp.stack([x[:, :, *cut].reshape(shape).swapaxes(1, 2) for cut in cuts])

    def cotangent(self, g: jax.Array) -> jax.Array:
        """g (B, N, outs..., G, K) as (B, G, length, K)."""
        pads = [(0, d.depth - d.out, 0) for d in self.flat] + [NO_PADDING] * len(self.stacked)
        if self.geometry.images == 1:
            pads[:1] = [NO_PADDING]  # no image follows
        g = padded(g, pads)
        g = g.reshape(g.shape[0], -1, *g.shape[-2:])
        return g[:, : self.length].swapaxes(1, 2)


def padded(x: jax.Array, pads: Sequence[tuple[int, int, int]]) -> jax.Array:
    """Pads x, starting with its third dimension."""
    rest = [NO_PADDING] * (x.ndim - 2 - len(pads))
    return lax.pad(x, jnp.zeros((), x.dtype), [NO_PADDING, NO_PADDING, *pads, *rest])


def _concatenate_windows(x: jax.Array, axis: int, dim: Dimension) -> jax.Array:
    """Concatenates the windows along one axis of x (..., E, C) in E, before its own index."""
    # `stride` neighbours are taken at a time, so windows that do not overlap are one reshape.
    width = dim.stride if dim.dilation == 1 else 1
    pieces = []
    for start in range(0, dim.window * dim.dilation, width * dim.dilation):
        end = start + (dim.out - 1) * dim.stride + width
        piece = lax.slice_in_dim(x, start, end, dim.stride // width, axis)
        piece = piece.reshape(*x.shape[:axis], dim.out, width, *x.shape[axis + 1 :])
        piece = jnp.moveaxis(piece, axis + 1, -3)
        pieces.append(piece.reshape(*piece.shape[:-3], -1, x.shape[-1]))
    return jnp.concatenate(pieces, axis=-2)[..., : dim.window * x.shape[-2], :]
