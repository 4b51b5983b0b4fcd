"""Convolutions: the gradient of a kernel is a sum of outer products of patches and cotangents.

    product: one matrix product per kernel offset, squared and dropped (`convolution_products.py`)
    gram:    inner products of patches, computed from those of pixels, and of cotangents

Patches are formed only where that is cheaper. Rounding is bounded as in `outer_products.py`, with
patches as the left vectors. The coefficient multiplies the image, so it scales whole patches.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from bevel import precision
from bevel.clipping.norms import convolution_products, gram
from bevel.clipping.norms.convolution_geometry import ConvolutionGeometry, ImageLayout
from bevel.clipping.norms.dense import wider
from bevel.clipping.norms.gram import NormSums
from bevel.clipping.norms.kernels import convolution_kernel
from bevel.clipping.norms.outer_products import (
    OuterProducts,
    Side,
    entry_counts,
    norm_from_sums,
    norm_with_scaling,
)
from bevel.clipping.norms.registry import (
    SEPARATE,
    SHARED,
    GradientSizes,
    Loops,
    MeasuredNorm,
    NormRule,
    register,
)
from bevel.clipping.norms.scaling import root
from bevel.clipping.norms.unfinished import UnfinishedNorm
from bevel.clipping.norms.weighting import mask_examples, weighted
from bevel.sharding.types import on_one_device

# On a CPU, pairs of rows are summed in this many chunks of examples, if possible, for images and
# cotangents of at least this many entries.
CHUNKS, SMALL = 8, 2**15


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["x", "g"],
    meta_fields=["geometry", "options", "separate", "multiplier"],
)
@dataclasses.dataclass(frozen=True)
class ConvolutionGradient:
    """The gradients of B examples with respect to a kernel, not formed.

    x is (B, separate..., *image) and g is (B, separate..., *result).
    """

    x: jax.Array
    g: jax.Array
    geometry: ConvolutionGeometry
    options: tuple[tuple[str, Any], ...]  # of the equation
    separate: int  # number of dimensions
    multiplier: precision.MatmulPrecision

    def norm(self, way: str, scaled: bool = True) -> MeasuredNorm:
        """Norms of the kernel's gradients, taken over all separate kernels together."""

        def measure(pairs: Sequence[OuterProducts]) -> MeasuredNorm:
            (pair,) = pairs
            scaled = dataclasses.replace(self, x=pair.left.values, g=pair.right.values)
            return scaled.unfinished_norm(way).finished()

        return norm_with_scaling([self.sides()], scaled, measure)

    def sides(self) -> OuterProducts:
        """The image and the cotangent as two sides, for code that scales, rounds or counts them."""
        sides = Side(self.x, self.x.shape[1:]), Side(self.g, self.g.shape[1:])
        return OuterProducts(*sides, 0, 0, (), self.multiplier)

    def unfinished_norm(self, way: str) -> UnfinishedNorm:
        """As `norm` without scaling, up to sums over all values."""
        return UnfinishedNorm(norm_from_sums, (self.norm_sums(way), *entry_counts([self.sides()])))

    @functools.partial(jax.jit, static_argnames="way")
    def norm_sums(self, way: str) -> NormSums:
        pair = self.sides().operands()
        x, g = (
            side.values.reshape(-1, *side.values.shape[1 + self.separate :])
            for side in (pair.left, pair.right)
        )
        sums_of = self.gram_sums if way == "gram" else self.product_sums
        parts = _in_chunks(sums_of, x, g) if way == "gram" else sums_of(x, g)
        lead = self.x.shape[: 1 + self.separate]
        shift = gram.length(parts.shift.reshape(lead))
        return NormSums(*(gram.sum_from(y.reshape(lead)) for y in parts))._replace(shift=shift)

    def gram_sums(self, x: jax.Array, g: jax.Array) -> NormSums:
        geometry, full = self.geometry, self.multiplier.precision
        left = convolution_products.patch_gram(geometry, x, full)
        right = convolution_products.cotangent_gram(geometry, g, full)
        left, right = left[:, :, None], right[:, :, None]
        pairs = gram.pair_sums(left, right, 2, 1)
        dtype = left.dtype
        patch = geometry.channels * math.prod(geometry.window)
        growth = gram.Sides(
            precision.rounding_growth(2 * patch + 16, dtype),
            precision.rounding_growth(2 * geometry.features + 16, dtype),
        )
        summed = precision.rounding_growth(2 * geometry.positions + 32, dtype)
        rounding = gram.Rounding(growth, summed, float(geometry.positions))
        roundoff = self.multiplier.roundoff
        return gram.bound([pairs], [], rounding, [roundoff], ("left",))

    def product_sums(self, x: jax.Array, g: jax.Array) -> NormSums:
        geometry, full = self.geometry, self.multiplier.precision
        stack = convolution_products.cheapest_stack(geometry)
        if self.goes_to_kernel:
            flat, tf32 = self.flat(x, g), self.multiplier.mantissa is not None
            square = convolution_kernel.shifted_product_squares(*flat, tf32=tf32)
            square = gram.sum_from(square.reshape(x.shape[0], -1))
        else:
            square = convolution_products.squared_norm_by_products(geometry, x, g, stack, full)
        dtype = square.dtype
        patches = convolution_products.patch_squares(geometry, x)
        canonical = geometry.cotangent(g).astype(dtype)
        cotangents = jnp.sum(jnp.square(canonical), axis=-1)  # (B, N, outs..., G)
        cotangents = jnp.moveaxis(cotangents, -1, 1).reshape(patches.shape)
        inner = precision.rounding_growth(
            geometry.channels * sum(geometry.window) + geometry.positions + 16, dtype
        )
        absolute = gram.sum_from(root(patches) * root(cotangents)) * (1 + inner)
        growth = precision.rounding_growth(
            convolution_products.square_roundings(geometry, stack) + 8, dtype
        )
        shift = precision.rounding_growth(2 * geometry.positions + 4, dtype) * absolute
        traces = gram.sum_from(patches), gram.sum_from(cotangents)
        size = absolute
        if self.multiplier.roundoff > 1e-6:
            size = jnp.minimum(
                absolute, root(traces[0]) * root(self.size_of_cotangents(g) * (1 + inner))
            )
        if not self.goes_to_kernel:  # the kernel multiplies by the coefficient in float32
            shift += self.multiplier.roundoff * size
        return NormSums(square, growth * square, shift, absolute, *traces)

    def formed(self) -> jax.Array:
        """The gradients (B, separate..., *kernel), in the dtype of the operands."""
        lead = self.x.shape[: 1 + self.separate]
        x, g = (y.reshape(-1, *y.shape[1 + self.separate :]) for y in (self.x, self.g))
        x, g = self.multiplier.operand(x), self.multiplier.operand(g)
        stack = convolution_products.cheapest_stack(self.geometry)
        products = convolution_products.per_example_products(
            self.geometry, x, g, stack, self.multiplier.precision
        )
        return products.reshape(*lead, *self.geometry.kernel).astype(self.multiplier.dtype)

    def size_of_cotangents(self, g: jax.Array) -> jax.Array:
        """The Frobenius norm of `sum_p g_p (x) g_p`, a bound on the squared spectral norm of g."""
        canonical = self.geometry.cotangent(g)
        rows = tuple(range(1, canonical.ndim - 2))
        batch = (0, canonical.ndim - 2)
        entries = jax.lax.dot_general(
            canonical,
            canonical,
            ((rows, rows), (batch, batch)),
            precision=self.multiplier.precision,
            preferred_element_type=precision.accumulation_dtype(g.dtype),
        )
        return root(gram.sum_from(jnp.square(entries)))

    @property
    def goes_to_kernel(self) -> bool:
        """Whether a kernel computes the products, which then never reach memory."""
        tf32 = self.multiplier.mantissa is not None
        types = [jax.ShapeDtypeStruct(y.shape, self.multiplier.dtype) for y in (self.x, self.g)]
        return not self.separate and convolution_kernel.available(*types, tf32=tf32)

    def flat(self, x: jax.Array, g: jax.Array) -> tuple[jax.Array, jax.Array, Any]:
        """Images and cotangents, with groups in the batch, and the place of each offset."""
        layout = ImageLayout(self.geometry, 0)
        x = layout.image(self.geometry.image(x))
        g = layout.cotangent(self.geometry.cotangent(g))
        x = x.reshape(x.shape[0], -1, *x.shape[3:])
        return x, g.reshape(-1, *g.shape[2:]), tuple(layout.places)

    def sum_by_kernel(self, factor: jax.Array, keep: Any) -> jax.Array:
        geometry, tf32 = self.geometry, self.multiplier.mantissa is not None
        x, g = (self.multiplier.operand(mask_examples(keep, y)) for y in (self.x, self.g))
        x, g, places = self.flat(x, g)
        groups = geometry.groups
        zero = jnp.zeros_like(factor)
        factor = jnp.repeat(factor if keep is None else jnp.where(keep, factor, zero), groups)
        x = x.reshape(x.shape[0], -1, groups, *x.shape[2:])
        g = g.reshape(-1, groups, *g.shape[1:])
        factor = factor.reshape(-1, groups).astype(jnp.float32)
        total = jnp.stack(
            [
                convolution_kernel.shifted_weighted_sum(
                    x[:, :, i], g[:, i], factor[:, i], places, tf32=tf32
                )
                for i in range(groups)
            ],
            axis=2,
        )  # (offsets, C, G, K)
        total = total.reshape(*geometry.window, geometry.channels, -1)
        out, inner, *spatial = geometry.specs[1]
        order = [int(i) for i in np.argsort([*spatial, inner, out])]
        return jnp.transpose(total, order)

    @functools.partial(jax.jit, static_argnames="way")
    def weighted_sum(self, factor: jax.Array, keep: Any = None, way: str = "gram") -> jax.Array:
        """`sum_b factor[b] * gradient[b]`, with loop dimensions in front."""
        if way == "product" and self.goes_to_kernel:
            return self.sum_by_kernel(factor, keep)
        x, g = weighted(self.multiplier, self.x, self.g, factor, keep)

        def total(x: jax.Array, g: jax.Array) -> jax.Array:
            full = self.multiplier.precision
            if not on_one_device():
                # XLA multiplies the result of a convolution over a split batch by the number of
                # devices that hold the same examples: with groups, or if the kernel is split too.
                stack = convolution_products.cheapest_stack(self.geometry)
                return convolution_products.sum_by_products(self.geometry, x, g, stack, full)
            options = dict(self.options)
            return convolution_products.weighted_sum(self.geometry, options, x, g, full)

        for _ in range(self.separate):
            total = jax.vmap(total, in_axes=(1, 1))
        return total(x, g)


def _in_chunks(
    sums_of: Callable[[jax.Array, jax.Array], NormSums], x: jax.Array, g: jax.Array
) -> NormSums:
    """Sums of all examples. On a CPU, unless a mesh may split them, of a few at a time.

    The inner products of pixels, and patches, take several times the memory of the image.
    """
    count = x.shape[0]
    size = max(d for d in range(1, max(1, count // CHUNKS) + 1) if count % d == 0)
    whole = on_one_device() or jax.typeof(x).sharding.mesh.empty
    large = x.size + g.size >= SMALL and count // size <= 2 * CHUNKS
    if not (whole and large and jax.default_backend() == "cpu"):
        return sums_of(x, g)
    x, g = (y.reshape(-1, size, *y.shape[1:]) for y in (x, g))
    return jax.tree.map(
        lambda y: y.reshape(count, *y.shape[2:]), jax.lax.map(lambda pair: sums_of(*pair), (x, g))
    )


def _accepts(eqn: JaxprEqn, operand: int) -> bool:
    """Accepts kernels of floating-point convolutions without batch groups."""
    avals: list[Any] = [v.aval for v in (*eqn.invars, *eqn.outvars)]
    floats = all(jnp.issubdtype(aval.dtype, jnp.floating) for aval in avals)
    plain = eqn.params["batch_group_count"] == 1
    return operand == 1 and floats and plain and all(0 not in aval.shape for aval in avals)


def _geometry_of(eqn: JaxprEqn, steps: int = 1) -> ConvolutionGeometry:
    """The geometry, with the images of all `steps` of loops that share the kernel."""
    avals: list[Any] = [v.aval for v in (*eqn.invars, eqn.outvars[0])]
    lhs, rhs, out = (aval.shape for aval in avals)
    geometry = ConvolutionGeometry.of(eqn.params, lhs, rhs, out)
    return dataclasses.replace(geometry, images=geometry.images * steps)


def _sizes(eqn: JaxprEqn, operand: int, loops: Loops) -> GradientSizes:
    del operand
    steps = {k: math.prod(n for kind, n in loops if kind == k) for k in (SEPARATE, SHARED)}
    geometry = _geometry_of(eqn, steps[SHARED])
    patch = geometry.channels * math.prod(geometry.window)
    return GradientSizes(
        steps[SEPARATE] * geometry.groups,
        geometry.positions,
        patch,
        geometry.features,
        pixels=geometry.pixels * geometry.channels,
    )


def _gradient(
    eqn: JaxprEqn, operand: int, loops: Loops, h: Sequence[Any], g: Any
) -> ConvolutionGradient:
    del operand
    (x,) = h
    dtype = wider(x.dtype, g.dtype)
    shared = math.prod(n for kind, n in loops if kind == SHARED)
    geometry = _geometry_of(eqn, shared)
    x = _with_images(x.astype(dtype), loops, geometry.specs[0][0])
    g = _with_images(g.astype(dtype), loops, geometry.specs[2][0])
    requested = eqn.params["precision"]
    names = ("window_strides", "padding", "lhs_dilation", "rhs_dilation", "dimension_numbers")
    options = {name: eqn.params[name] for name in (*names, "feature_group_count")}
    return ConvolutionGradient(
        x,
        g,
        geometry,
        tuple((name, _freeze(value)) for name, value in options.items()),
        sum(kind == SEPARATE for kind, _ in loops),
        precision.matmul_precision(dtype, requested),
    )


def _freeze(value: Any) -> Any:
    """Converts lists to tuples, so that the options can be hashed."""
    return tuple(map(_freeze, value)) if isinstance(value, list) else value


def _with_images(x: Any, loops: Loops, images: int) -> Any:
    """`x` (B, loops..., own) with the steps of shared loops as further images."""
    stacked = [i + 1 for i, (kind, _) in enumerate(loops) if kind == SEPARATE]
    shared = [i + 1 for i, (kind, _) in enumerate(loops) if kind == SHARED]
    own = list(range(1 + len(loops), x.ndim))
    order = [0, *stacked, *own[:images], *shared, *own[images:]]
    x = jnp.transpose(x, order)
    first = 1 + len(stacked) + images
    count = int(np.prod(x.shape[first : first + len(shared) + 1]))
    return x.reshape(*x.shape[:first], count, *x.shape[first + len(shared) + 1 :])


def _image(eqn: JaxprEqn, operand: int) -> tuple[int, ...]:
    del eqn, operand
    return (0,)


register(
    "conv_general_dilated", NormRule("convolution", _accepts, _image, _sizes, _gradient, sides=None)
)
