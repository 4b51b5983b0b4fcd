"""Per-example gradients of a convolution's kernel, their norms, and their sum over examples.

In one group, with output positions p (P of them, over N images) and kernel offsets o:

    gradient:    W[o] = sum_p x[p stride + o dilation] (x) g[p]             (C, K) for each offset
    products:    |W|^2 = sum_o |W[o]|^2
    Gram:        |W|^2 = sum_{p,s} (g_p . g_s) sum_o x[p stride + o dilation] . x[s stride + ...]

The product form needs 2 P C K FLOPs and C K numbers for each offset. The Gram form needs
2 P^2 (C + K) FLOPs and P^2 numbers in all, because every offset adds inner products of the same
pixels.

Everywhere x is (B, *lhs shape) and g is (B, *out shape). If their dtypes agree, they are multiplied
in that dtype and summed in float32, or in float64 for float64 operands. Otherwise they are first
cast to the dtype of the sum. Values are multiplied with the zeros of the padding, so a non-finite
value makes a norm NaN, even where the gradient would not have read it. Nothing is scaled: bring x
and g near 1 first (`scaling.py`).

"Roundings" counts the roundings that a term goes through in a row, in the dtype of the sum. It
bounds the error relative to the sum of the absolute values of the terms. Adding the zeros of the
padding is exact.
"""

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn

from bevel.clipping.norms.convolution_geometry import (
    NO_PADDING,
    ConvolutionGeometry,
    ImageLayout,
    padded,
)
from bevel.clipping.norms.materialised import roundings, staged_sum
from bevel.clipping.program.equations import bind, evaluate
from bevel.precision import accumulation_dtype

# More products than this are compiled as a loop.
UNROLLED = 50
FULL = lax.Precision.HIGHEST


def _multiply(
    x: jax.Array, g: jax.Array, axis: int, precision: lax.Precision, over_batch: bool = False
) -> jax.Array:
    """Contracts `axis` (2 or 3) of x and g, both (B, G, rows, columns): (B, G, ..., ...).

    With `over_batch`, the result is the sum over B.
    """
    x, g, dtype = _of_one_dtype(x, g)
    summed, kept = ((0, axis), (1,)) if over_batch else ((axis,), (0, 1))
    numbers = ((summed, summed), (kept, kept))
    return lax.dot_general(x, g, numbers, precision, preferred_element_type=dtype)


def _of_one_dtype(x: jax.Array, g: jax.Array) -> tuple[jax.Array, jax.Array, np.dtype]:
    """x and g in their common dtype, or else in the accumulation dtype, which is returned too."""
    dtype = accumulation_dtype(x.dtype, g.dtype)
    return (x, g, dtype) if x.dtype == g.dtype else (x.astype(dtype), g.astype(dtype), dtype)


def over_products(
    layout: ImageLayout,
    x: jax.Array,
    g: jax.Array,
    precision: lax.Precision,
    use: Callable[[jax.Array], jax.Array],
    over_batch: bool = False,
) -> jax.Array:
    """Applies `use` to every product (B, G, width * C, K) in turn, and stacks the results.

    With `over_batch`, products are sums over B.
    """
    image = layout.image(layout.geometry.image(x))
    g = layout.cotangent(layout.geometry.cotangent(g))
    sizes = (1, *g.shape[:3], image.shape[-1])

    def one(image: jax.Array, phase: Any, shift: Any) -> jax.Array:
        rows = lax.dynamic_slice(image, (phase, 0, 0, shift, 0), sizes)[0]
        return use(_multiply(rows, g, 2, precision, over_batch))

    if len(layout.places) > UNROLLED:
        phases, shifts = np.array(layout.places, np.int32).T
        return lax.map(lambda place: one(image, *place), (phases, shifts))
    results: list[jax.Array] = []
    for place in layout.places:
        if results:
            # Without the barrier, the compiler may form all slices first, which are the patches.
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
    return _in_kernel_order(layout, products)


def _in_kernel_order(layout: ImageLayout, products: jax.Array) -> jax.Array:
    """The products (places, B, G, width * C, K) as gradients (B, *kernel shape)."""
    geometry = layout.geometry
    sizes = (geometry.groups, layout.width, geometry.channels, geometry.features)
    # From (places, B, G, width, C, K) to (B, window..., C, G K), then to the kernel's own order.
    products = products.reshape(*products.shape[:2], *sizes).transpose(1, 0, 3, 4, 2, 5)
    products = products.reshape(products.shape[0], *geometry.window, geometry.channels, -1)
    out, inner, *spatial = geometry.specs[1]
    return products.transpose(0, *(int(i) + 1 for i in np.argsort([*spatial, inner, out])))


def sum_by_products(
    geometry: ConvolutionGeometry,
    x: jax.Array,
    g: jax.Array,
    stack: int,
    precision: lax.Precision = FULL,
) -> jax.Array:
    """As `weighted_sum`, without a convolution. Roundings: B P + 1."""
    if geometry.empty:
        return jnp.zeros(geometry.kernel, accumulation_dtype(x.dtype, g.dtype))
    layout = ImageLayout(geometry, stack)
    products = over_products(layout, x, g, precision, lambda product: product, over_batch=True)
    return _in_kernel_order(layout, products[:, None])[0]


def squared_norm_by_products(
    geometry: ConvolutionGeometry,
    x: jax.Array,
    g: jax.Array,
    stack: int,
    precision: lax.Precision = FULL,
) -> jax.Array:
    """|gradient|^2 (B,), with one product in memory at a time.

    Roundings: P + 1 for the entries, which move the gradient by at most their growth times
    sum_p |patch_p| |g_p|. Then `square_roundings`, relative to the square.
    """
    if geometry.empty:
        return jnp.zeros(x.shape[:1], accumulation_dtype(x.dtype, g.dtype))
    layout = ImageLayout(geometry, stack)
    squares = over_products(layout, x, g, precision, lambda w: staged_sum(w * w)[0])
    return staged_sum(squares.T)[0]


def square_roundings(geometry: ConvolutionGeometry, stack: int) -> int:
    """The roundings of the squares and their sum in `squared_norm_by_products`."""
    layout = ImageLayout(geometry, stack)
    shape = (geometry.groups, layout.width * geometry.channels, geometry.features)
    return 1 + roundings(shape) + roundings((len(layout.places),))


def multiplies_pixels(geometry: ConvolutionGeometry) -> bool:
    """Whether inner products of pixels are cheaper than those of patches.

    Patches are cheaper where strides leave few of them.
    """
    return geometry.pixels**2 < math.prod(geometry.window) * geometry.positions**2


def patch_gram(
    geometry: ConvolutionGeometry, x: jax.Array, precision: lax.Precision = FULL
) -> jax.Array:
    """The inner products of the patches (B, G, P, P), summed from those of pixels over the window.

    Roundings: C + 1 + sum(window), or C prod(window) + 1 where patches are formed because there are
    few of them. They are relative to |patch_p| |patch_s|.
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
    """Sums x (B, G, N, sizes...) over the window.

    With `pairs`, x has N and the sizes twice, and both are summed. Dimensions are summed one after
    the other, so the number of terms is the sum of the window sizes, not their product.
    """
    dims, sets = geometry.dims, 2 if pairs else 1
    x = padded(x, [NO_PADDING, *(d.pad for d in dims)] * sets)
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


def weighted_sum(
    geometry: ConvolutionGeometry,
    params: Mapping[str, Any],
    x: jax.Array,
    g: jax.Array,
    precision: lax.Precision = FULL,
) -> jax.Array:
    """The sum of the gradients over B, in the kernel's shape. x or g carries the coefficients.

    This is one convolution over all B N images, the transpose of the equation with `params`. The
    result always has the accumulation dtype. Roundings: B P + 1.
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

    # A transpose needs one dtype throughout, so trace it with wide operands and run it with these.
    program = jax.make_jaxpr(transposed)(*(jax.ShapeDtypeStruct(a.shape, dtype) for a in (x, g)))
    (total,) = evaluate(program.jaxpr, program.consts, [x, g], handle)
    return total


def _in_usual_order(
    convolve: functools.partial[jax.Array], x: jax.Array, kernel: jax.Array
) -> jax.Array:
    """The convolution with its dimensions in the usual order.

    In a branch or a loop on a CPU, XLA takes a hundred times as long for any other order.
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
    """x (B, ...) with B and N merged into one dimension. N is dimension `axis` of the rest."""
    x = jnp.moveaxis(x, 0, axis)
    return x.reshape(*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :])


def cheapest_stack(geometry: ConvolutionGeometry) -> int:
    """The `stack` for which `squared_norm_by_products` moves the least memory.

    Measured on a CPU with 3x3 windows, it is within a fifth of the fastest. Stacking all offsets
    halves the time with 3 channels, and stacking one dimension saves a seventh with 64.
    """
    image = geometry.pixels * geometry.groups * geometry.channels
    cotangent = geometry.positions * geometry.groups * geometry.features

    def entries_moved(stack: int) -> int:
        layout = ImageLayout(geometry, stack)
        row = layout.width * geometry.channels * geometry.groups
        x_flat = len(layout.phases) * layout.size * row
        g_flat = layout.length * geometry.groups * geometry.features
        read = len(layout.places) * (layout.length * row + g_flat)
        copied = (x_flat != image) * (image + x_flat) + (g_flat != cotangent) * (cotangent + g_flat)
        return read + copied

    return min(range(len(geometry.dims) + 1), key=entries_moved)
