"""Convolutions: the gradient of the kernel for one example, its norm, and the sum over examples.

In one group, with output positions p (P of them, over N images) and kernel offsets o:

    gradient:    W[o] = sum_p x[p stride + o dilation] (x) g[p]             (C, K) for each offset
    products:    |W|^2 = sum_o |W[o]|^2
    Gram:        |W|^2 = sum_{p,s} (g_p . g_s) sum_o x[p stride + o dilation] . x[s stride + ...]

Products take 2 P C K FLOPs and C K numbers for each offset; the Gram form 2 P^2 (C + K) FLOPs and
P^2 numbers in all, since every offset adds inner products of the same pixels.

Everywhere x is (B, *lhs shape) and g is (B, *out shape), in dtypes of their own: where the two
agree they are multiplied as they are, and added up in float32 (float64 for such operands).
Zeros of the padding meet values: one that is not finite makes a norm NaN, even where the gradient
would not have read it. Squares are plain: bring x and g near 1 first (`scaling.py`).

"Roundings" are those that a term goes through in a row, in the dtype of the sum: a bound relative
to the sum of the absolute values of the terms. Zeros of the padding are added exactly.
"""

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn

from bevel.clipping.norms.convolution_geometry import (
    STILL,
    ConvolutionGeometry,
    ImageLayout,
    padded,
)
from bevel.clipping.norms.materialised import roundings, staged_sum
from bevel.clipping.program.equations import bind, evaluate
from bevel.precision import accumulation_dtype

# More products than this become a loop in the compiled program.
UNROLLED = 50
FULL = lax.Precision.HIGHEST


def _multiply(x: jax.Array, g: jax.Array, axis: int, precision: lax.Precision) -> jax.Array:
    """Contracts `axis` (2 or 3) of x and g, both (B, G, rows, columns): (B, G, ..., ...)."""
    x, g, dtype = _of_one_dtype(x, g)
    numbers = (((axis,), (axis,)), ((0, 1), (0, 1)))
    return lax.dot_general(x, g, numbers, precision, preferred_element_type=dtype)


def _of_one_dtype(x: jax.Array, g: jax.Array) -> tuple[jax.Array, jax.Array, np.dtype]:
    """x and g in the dtype that they share or else the accumulation dtype, which comes third."""
    dtype = accumulation_dtype(x.dtype, g.dtype)
    return (x, g, dtype) if x.dtype == g.dtype else (x.astype(dtype), g.astype(dtype), dtype)


def over_products(
    layout: ImageLayout,
    x: jax.Array,
    g: jax.Array,
    precision: lax.Precision,
    use: Callable[[jax.Array], jax.Array],
) -> jax.Array:
    """`use` of every product (B, G, width * C, K), one after the other, stacked in front."""
    image = layout.image(layout.geometry.image(x))
    g = layout.cotangent(layout.geometry.cotangent(g))
    sizes = (1, *g.shape[:3], image.shape[-1])

    def one(image: jax.Array, phase: Any, shift: Any) -> jax.Array:
        rows = lax.dynamic_slice(image, (phase, 0, 0, shift, 0), sizes)[0]
        return use(_multiply(rows, g, 2, precision))

    if len(layout.places) > UNROLLED:
        phases, shifts = np.array(layout.places, np.int32).T
        return lax.map(lambda place: one(image, *place), (phases, shifts))
    results: list[jax.Array] = []
    for place in layout.places:
        if results:
            # Else the compiler may take all slices first, which are the patches.
            image, results[-1] = lax.optimization_barrier((image, results[-1]))
        results.append(one(image, *place))
    return jnp.stack(results)


def per_example_products(
    geometry: ConvolutionGeometry,
    x: jax.Array,
    g: jax.Array,
    stack: int,
    precision: lax.Precision = FULL,
) -> jax.Array:
    """The gradients (B, *kernel shape) of x (B, *lhs shape) and g (B, *out shape).

    Roundings of an entry: P + 1.
    """
    if geometry.empty:
        return jnp.zeros((x.shape[0], *geometry.kernel), accumulation_dtype(x.dtype, g.dtype))
    layout = ImageLayout(geometry, stack)
    products = over_products(layout, x, g, precision, lambda product: product)
    sizes = (geometry.groups, layout.width, geometry.channels, geometry.features)
    # (places, B, G, width, C, K) to (B, window..., C, G K), and to the kernel's own order.
    products = products.reshape(*products.shape[:2], *sizes).transpose(1, 0, 3, 4, 2, 5)
    products = products.reshape(x.shape[0], *geometry.window, geometry.channels, -1)
    out, inner, *spatial = geometry.specs[1]
    return products.transpose(0, *(int(i) + 1 for i in np.argsort([*spatial, inner, out])))


def squared_norm_by_products(
    geometry: ConvolutionGeometry,
    x: jax.Array,
    g: jax.Array,
    stack: int,
    precision: lax.Precision = FULL,
) -> jax.Array:
    """|gradient|^2 (B,), with one product alive at a time.

    Roundings: P + 1 of the entries, which move the gradient by at most their growth times
    sum_p |patch_p| |g_p|; then `square_roundings`, relative to the square.
    """
    if geometry.empty:
        return jnp.zeros(x.shape[:1], accumulation_dtype(x.dtype, g.dtype))
    layout = ImageLayout(geometry, stack)
    squares = over_products(layout, x, g, precision, lambda w: staged_sum(w * w)[0])
    return staged_sum(squares.T)[0]


def square_roundings(geometry: ConvolutionGeometry, stack: int) -> int:
    """Of the squares and their sum in `squared_norm_by_products`."""
    layout = ImageLayout(geometry, stack)
    shape = (geometry.groups, layout.width * geometry.channels, geometry.features)
    return 1 + roundings(shape) + roundings((len(layout.places),))


def multiplies_pixels(geometry: ConvolutionGeometry) -> bool:
    """Whether pixels have fewer inner products than patches, of which strides leave few."""
    return geometry.pixels**2 < math.prod(geometry.window) * geometry.positions**2


def patch_gram(
    geometry: ConvolutionGeometry, x: jax.Array, precision: lax.Precision = FULL
) -> jax.Array:
    """The inner products of the patches (B, G, P, P): sums of those of pixels over the window.

    Roundings: C + 1 + sum(window), or C prod(window) + 1 where patches are fewer and are formed;
    relative to |patch_p| |patch_s|.
    """
    x, dims = geometry.image(x), geometry.dims
    if not multiplies_pixels(geometry):
        (patches,) = ImageLayout(geometry, len(dims)).image(x)
        return _multiply(patches, patches, 3, precision)
    pixels = x.reshape(x.shape[0], geometry.pixels, *x.shape[-2:]).swapaxes(1, 2)
    gram = _multiply(pixels, pixels, 3, precision)
    shape = (geometry.images, *(d.size for d in dims))
    gram = _window_sum(geometry, gram.reshape(*gram.shape[:2], *shape, *shape), pairs=True)
    return gram.reshape(*gram.shape[:2], geometry.positions, geometry.positions)


def patch_squares(geometry: ConvolutionGeometry, x: jax.Array) -> jax.Array:
    """|patch_p|^2 (B, G, P). Roundings: C + 1 + sum(window)."""
    x = geometry.image(x).astype(accumulation_dtype(x.dtype))
    squares = jnp.moveaxis(jnp.sum(x * x, axis=-1), -1, 1)
    squares = _window_sum(geometry, squares, pairs=False)
    return squares.reshape(*squares.shape[:2], geometry.positions)


def _window_sum(geometry: ConvolutionGeometry, x: jax.Array, pairs: bool) -> jax.Array:
    """Sums x (B, G, N, sizes...) over the window; with `pairs`, both halves of (B, G, ..., ...).

    One dimension after the other, so that their lengths add up and do not multiply.
    """
    dims, sets = geometry.dims, 2 if pairs else 1
    x = padded(x, [STILL, *(d.pad for d in dims)] * sets)
    for i, dim in enumerate(dims, 3):
        terms = []
        for start in range(0, dim.window * dim.dilation, dim.dilation):
            end, term = start + (dim.out - 1) * dim.stride + 1, x
            for axis in [i, i + 1 + len(dims)][:sets]:
                term = lax.slice_in_dim(term, start, end, dim.stride, axis)
            terms.append(term)
        x = functools.reduce(operator.add, terms)
    return x


def cotangent_gram(
    geometry: ConvolutionGeometry, g: jax.Array, precision: lax.Precision = FULL
) -> jax.Array:
    """The inner products of the cotangents (B, G, P, P). Roundings: K + 1."""
    g = geometry.cotangent(g)
    g = g.reshape(g.shape[0], geometry.positions, *g.shape[-2:]).swapaxes(1, 2)
    return _multiply(g, g, 3, precision)


def squared_norm_by_gram(
    geometry: ConvolutionGeometry, x: jax.Array, g: jax.Array, precision: lax.Precision = FULL
) -> jax.Array:
    """|gradient|^2 (B,), not below 0.

    Roundings: `gram_roundings`, relative to (sum_p |patch_p| |g_p|)^2.
    """
    if geometry.empty:
        return jnp.zeros(x.shape[:1], accumulation_dtype(x.dtype, g.dtype))
    grams = patch_gram(geometry, x, precision), cotangent_gram(geometry, g, precision)
    return jnp.maximum(staged_sum(grams[0] * grams[1])[0], 0)


def gram_roundings(geometry: ConvolutionGeometry) -> int:
    """Of everything in `squared_norm_by_gram`."""
    c, window, p = geometry.channels, geometry.window, geometry.positions
    inner = c + sum(window) if multiplies_pixels(geometry) else c * math.prod(window)
    return inner + geometry.features + 3 + roundings((geometry.groups, p, p))


def weighted_sum(
    geometry: ConvolutionGeometry,
    params: Mapping[str, Any],
    x: jax.Array,
    g: jax.Array,
    precision: lax.Precision = FULL,
) -> jax.Array:
    """The sum over B of the gradients, in the kernel's shape, for g that carries its coefficient.

    One convolution over all B N images, the transpose of the equation with `params`; the result
    has the accumulation dtype whatever the operands have. Roundings: B P + 1.
    """
    x, g, dtype = _of_one_dtype(x, g)
    x, g = _merged(x, geometry.specs[0][0]), _merged(g, geometry.specs[2][0])
    wanted = {"precision": precision, "preferred_element_type": dtype}
    options = {k: v for k, v in params.items() if k not in (*wanted, "out_sharding")}

    def transposed(x: jax.Array, g: jax.Array) -> Sequence[jax.Array]:
        kernel = jax.ShapeDtypeStruct(geometry.kernel, dtype)
        return jax.linear_transpose(lambda w: lax.conv_general_dilated(x, w, **options), kernel)(g)

    def handle(eqn: JaxprEqn, inputs: list[Any]) -> list[Any]:
        if eqn.primitive.name != "conv_general_dilated":
            return bind(eqn, inputs, in_its_context=False)
        convolve = functools.partial(eqn.primitive.bind, **(eqn.params | wanted))
        on_cpu = jax.default_backend() == "cpu"
        return [_in_usual_order(convolve, *inputs) if on_cpu else convolve(*inputs)]

    # Traced with wide operands, since a transpose asks for one dtype throughout; run with these.
    program = jax.make_jaxpr(transposed)(*(jax.ShapeDtypeStruct(a.shape, dtype) for a in (x, g)))
    (total,) = evaluate(program.jaxpr, program.consts, [x, g], handle)
    return total


def _in_usual_order(
    convolve: functools.partial[jax.Array], x: jax.Array, kernel: jax.Array
) -> jax.Array:
    """The convolution with its dimensions in the usual order.

    Within a branch or a loop, XLA takes a hundred times as long for any other order on a CPU.
    """
    (b, c, *image), (k, d, *window), (n, f, *result) = convolve.keywords["dimension_numbers"]
    x = jnp.transpose(x, (b, *image, c))
    kernel = jnp.transpose(kernel, (*window, d, k))
    last = x.ndim - 1
    image_spec, window_spec = (0, last, *range(1, last)), (last, last - 1, *range(last - 1))
    usual = lax.ConvDimensionNumbers(image_spec, window_spec, image_spec)
    total = convolve(x, kernel, dimension_numbers=usual)
    return jnp.transpose(total, tuple(map(int, np.argsort((n, *result, f)))))


def _merged(x: jax.Array, axis: int) -> jax.Array:
    """x (B, ...) with B and N (at `axis` of the rest) as one dimension."""
    x = jnp.moveaxis(x, 0, axis)
    return x.reshape(*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :])


class Cost(NamedTuple):
    """Of one example: FLOPs, and bytes through memory if slices are read where they are."""

    flops: int
    bytes: int


def _amounts(geometry: ConvolutionGeometry) -> tuple[int, int, int]:
    """Numbers in the image, the cotangent and the kernel."""
    image = geometry.pixels * geometry.groups * geometry.channels
    cotangent = geometry.positions * geometry.groups * geometry.features
    return image, cotangent, math.prod(geometry.kernel)


def products_cost(geometry: ConvolutionGeometry, stack: int, itemsize: int) -> Cost:
    """Of `squared_norm_by_products`; `per_example_products` also moves what it puts in order."""
    layout, (image, cotangent, kernel) = ImageLayout(geometry, stack), _amounts(geometry)
    row = layout.width * geometry.channels * geometry.groups
    flat = len(layout.phases) * layout.size * row
    g_flat = layout.length * geometry.groups * geometry.features
    numbers = len(layout.places) * (layout.length * row + g_flat)
    numbers += (flat != image) * (image + flat) + (g_flat != cotangent) * (cotangent + g_flat)
    return Cost(2 * (layout.length + 1) * kernel, itemsize * numbers + 8 * kernel)


def cheapest_stack(geometry: ConvolutionGeometry, itemsize: int) -> int:
    """The `stack` that moves the fewest bytes.

    Measured on a CPU with 3x3 windows, its products are within a fifth of the fastest: all offsets
    stacked take half the time of none with 3 channels, one dimension a seventh less with 64.
    """
    stacks = range(len(geometry.dims) + 1)
    return min(stacks, key=lambda stack: products_cost(geometry, stack, itemsize).bytes)


def gram_cost(geometry: ConvolutionGeometry, itemsize: int) -> Cost:
    """Of `squared_norm_by_gram`."""
    image, cotangent, _ = _amounts(geometry)
    pairs = geometry.groups * geometry.positions**2
    flops = 2 * pairs * (geometry.features + 1)
    if multiplies_pixels(geometry):
        inner = geometry.groups * geometry.pixels**2
        flops += 2 * inner * geometry.channels + sum(geometry.window) * pairs
        return Cost(flops, itemsize * (image + cotangent) + 8 * (inner + pairs))
    row = math.prod(geometry.window) * geometry.channels
    patches = geometry.positions * geometry.groups * row
    numbers = image + cotangent + 2 * patches * (patches != image)
    return Cost(flops + 2 * pairs * row, itemsize * numbers + 8 * 2 * pairs)


def weighted_sum_cost(geometry: ConvolutionGeometry, itemsize: int) -> Cost:
    """Of `weighted_sum`, without its result, which the whole batch shares."""
    image, cotangent, kernel = _amounts(geometry)
    return Cost(2 * geometry.positions * kernel, itemsize * (image + cotangent))
