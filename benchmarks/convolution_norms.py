"""Times the ways to compute a convolution's gradient norms (`convolution_products.py`).

    python benchmarks/convolution_norms.py                          # small on a CPU, full elsewhere
    python benchmarks/convolution_norms.py --cases 8x8 --ways products,gram --seconds 60

The cases are the convolutions of WRN-16-4 on 32x32 images. Each line has the milliseconds for the
batch, the time that the compiler's count of FLOPs and bytes needs at the rates of `--peak` and
`--bandwidth` (by default those of an H200), the compiler's temporary memory, and the relative
difference of its norms from those of the first way. If a way fails, its line says why. After
`--seconds`, the rest is skipped.
"""

import argparse
import datetime
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bevel.clipping.norms import convolution_products
from bevel.clipping.norms.convolution_geometry import ConvolutionGeometry, ImageLayout


class Case(NamedTuple):
    size: int
    channels: int
    features: int
    window: int = 3
    stride: int = 1


CASES = {
    "32x32 64->64": Case(32, 64, 64),
    "16x16 128->128": Case(16, 128, 128),
    "8x8 256->256": Case(8, 256, 256),
    "32x32 64->128 stride 2": Case(32, 64, 128, stride=2),
    "32x32 64->128 1x1 stride 2": Case(32, 64, 128, window=1, stride=2),
    "16x16 128->256 stride 2": Case(16, 128, 256, stride=2),
    "32x32 3->64": Case(32, 3, 64),
    "32x32 3->16": Case(32, 3, 16),
    "32x32 16->64": Case(32, 16, 64),
}
ORDER = ("NHWC", "HWIO", "NHWC")
Array = Any
Way = Callable[[Array, Array, Array], Any]  # of x (B, 1, H, W, C), g (B, 1, H, W, K) and the kernel


def ways(case: Case, dtype: np.dtype) -> tuple[dict[str, Way], list[jax.ShapeDtypeStruct]]:
    """Every way, and the types of x, g and the kernel for one example."""
    window, strides = (case.window, case.window), (case.stride, case.stride)

    def conv(x: Array, w: Array) -> Array:
        return lax.conv_general_dilated(x, w, strides, "SAME", dimension_numbers=ORDER)

    x_type = jax.ShapeDtypeStruct((1, case.size, case.size, case.channels), dtype)
    w_type = jax.ShapeDtypeStruct((*window, case.channels, case.features), dtype)
    (eqn,) = jax.make_jaxpr(conv)(x_type, w_type).eqns
    g_type = jax.eval_shape(conv, x_type, w_type)
    geometry = ConvolutionGeometry.of(eqn.params, x_type.shape, w_type.shape, g_type.shape)
    # Products of bfloat16 are exact; float32 products use the precision of the model.
    precision = lax.Precision.DEFAULT
    best = convolution_products.cheapest_stack(geometry)

    def flat(x: Array) -> Array:
        return x.reshape(-1, *x.shape[2:])

    def forward(x: Array, g: Array, w: Array) -> Array:
        return conv(flat(x), w)

    def plain_sum(x: Array, g: Array, w: Array) -> Array:
        return jax.linear_transpose(lambda w: conv(flat(x), w), w)(flat(g))[0]

    def wide_sum(x: Array, g: Array, w: Array) -> Array:
        return plain_sum(*(a.astype(jnp.float32) for a in (x, g, w)))

    def weighted_sum(x: Array, g: Array, w: Array) -> Array:
        return convolution_products.weighted_sum(geometry, eqn.params, x, g, precision)

    def by_products(stack: int) -> Way:
        norm = convolution_products.squared_norm_by_products
        return lambda x, g, w: norm(geometry, x, g, stack, precision)

    def one_stage(x: Array, g: Array, w: Array) -> Array:
        def square(product: Array) -> Array:
            return jnp.sum(product * product, axis=(1, 2, 3))

        layout = ImageLayout(geometry, best)
        return jnp.sum(convolution_products.over_products(layout, x, g, precision, square), axis=0)

    def gram(x: Array, g: Array, w: Array) -> Array:
        h = convolution_products.patch_gram(geometry, x, precision)
        g = convolution_products.cotangent_gram(geometry, g, precision)
        return jnp.sum(h * g, axis=(1, 2, 3))

    def per_example(x: Array, g: Array, w: Array) -> Array:
        return convolution_products.per_example_products(geometry, x, g, best, precision)

    def per_example_and_sum(x: Array, g: Array, w: Array) -> tuple[Array, Array]:
        gradients = per_example(x, g, w)
        norms = jnp.sum(gradients * gradients, axis=(1, 2, 3, 4))
        return norms, jnp.einsum("b,b...->...", lax.rsqrt(norms), gradients)

    def patches(x: Array, g: Array, w: Array) -> Array:
        h = lax.conv_general_dilated_patches(
            flat(x), window, strides, "SAME", dimension_numbers=ORDER
        )
        h = h.reshape(x.shape[0], -1, h.shape[-1])
        g = g.reshape(x.shape[0], -1, g.shape[-1])
        product = jnp.einsum("bpc,bpk->bck", h, g, preferred_element_type=jnp.float32)
        return jnp.sum(product * product, axis=(1, 2))

    found: dict[str, Way] = {
        "forward": forward,
        "sum, plain": plain_sum,
        "sum, float32 result": weighted_sum,
        "sum, float32 operands": wide_sum,
    }
    for stack in range(3):
        chosen = " (chosen)" if stack == best else ""
        found[f"products, stack {stack}{chosen}"] = by_products(stack)
    found |= {
        "products, one stage": one_stage,
        "gram": gram,
        "per-example products": per_example,
        "per-example products, sum": per_example_and_sum,
        "patches": patches,
    }
    return found, [x_type, jax.ShapeDtypeStruct(g_type.shape, dtype), w_type]


def operands(types: list[jax.ShapeDtypeStruct], batch: int) -> list[Array]:
    x, g, w = types
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = [(batch, *x.shape), (batch, *g.shape), w.shape]
    return [
        jax.random.normal(key, shape, jnp.float32).astype(x.dtype)
        for key, shape in zip(keys, shapes, strict=True)
    ]


def measure(way: Callable[..., Any], arrays: list[Array]) -> tuple[float, Any, Any]:
    """Seconds per call (the minimum of three rounds), the compiled program, and the result."""
    program = jax.jit(way).lower(*arrays).compile()
    start = time.perf_counter()
    result = jax.block_until_ready(program(*arrays))
    jax.block_until_ready(program(*arrays))
    calls = max(1, min(20, int(0.2 / (time.perf_counter() - start))))
    rounds = []
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(calls):
            last = program(*arrays)
        jax.block_until_ready(last)
        rounds.append((time.perf_counter() - start) / calls)
    return min(rounds), program, result


def main() -> int:
    small = jax.default_backend() == "cpu"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=4 if small else 2048)
    parser.add_argument("--dtype", default="float32" if small else "bfloat16")
    parser.add_argument("--cases", default="", help="comma-separated parts of names")
    parser.add_argument("--ways", default="", help="comma-separated parts of names")
    parser.add_argument("--seconds", type=float, default=40 if small else 150)
    parser.add_argument("--peak", type=float, default=0.1 if small else 989, help="TFLOP/s")
    parser.add_argument("--bandwidth", type=float, default=0.02 if small else 4.8, help="TB/s")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    device = f"{jax.devices()[0].device_kind}, {datetime.date.today()}, jax {jax.__version__}"
    print(f"{device}, batch {options.batch}, {options.dtype}; milliseconds")
    for name, case in CASES.items():
        if not any(part in name for part in options.cases.split(",")):
            continue
        print(f"{name:28}{'time':>10}{'FLOPs':>10}{'bytes':>10}{'temporary':>12}{'off':>10}")
        found, types = ways(case, jnp.dtype(options.dtype))
        arrays, reference = operands(types, options.batch), None
        for title, way in found.items():
            if not any(part in title for part in options.ways.split(",")):
                continue
            if time.monotonic() > end:
                print("  out of time: the rest is skipped")
                break
            try:
                seconds, program, result = measure(way, arrays)
            except Exception as error:
                print(f"  {title:26}{str(error).strip().splitlines()[0][:100]}", flush=True)
                continue
            cost = program.cost_analysis()
            flops = cost["flops"] / options.peak / 1e9
            moved = cost["bytes accessed"] / options.bandwidth / 1e9
            temporary = program.memory_analysis().temp_size_in_bytes
            line = f"  {title:26}{1e3 * seconds:10.3f}{flops:10.3f}{moved:10.3f}"
            line += f"{temporary / 2**20:8.0f} MiB"
            norms = result[0] if isinstance(result, tuple) else result
            if norms.shape == (options.batch,):
                norms = np.asarray(norms, np.float64)
                reference = norms if reference is None else reference
                line += f"{np.max(np.abs(norms / reference - 1)):10.0e}"
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
