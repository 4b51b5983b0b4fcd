"""Checks the kernels over shifted products on this GPU, and times them for several tilings.

    python benchmarks/convolution_kernel.py [--seconds 90] [--batch 2048] [NAME ...]

Prints one line for each 3x3 convolution of a wide ResNet in bfloat16, or for those whose name
contains a NAME. It has the largest error relative to XLA in float32, of the squares over all
examples (sq err) and of the norm of the weighted sum (sum err), and milliseconds for

    squares   `shifted_product_squares`, with the fastest tiling
    sum       `shifted_weighted_sum`, with the fastest tiling
    layout    computing the flat layout of image and cotangent, which both kernels need
    dW        for comparison: the weight gradient of the whole batch, by XLA

A tiling is rows/columns/block/warps/stages. TFLOP/s counts the multiplications of the convolution
itself, without those of padding. The times of all tilings of a shape are printed too. Without a
GPU, the kernels are only checked at one small shape, in interpret mode.
"""

import argparse
import concurrent.futures
import functools
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bevel.clipping.norms.convolution_geometry import ConvolutionGeometry, ImageLayout
from bevel.clipping.norms.kernels.convolution_kernel import (
    Tiling,
    shifted_product_squares,
    shifted_weighted_sum,
    xla_shifted_product_squares,
    xla_shifted_weighted_sum,
)

warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated", DeprecationWarning)


class Shape(NamedTuple):
    size: int
    channels: int
    features: int
    stride: int = 1


SHAPES = {
    "32x32 64": Shape(32, 64, 64),
    "16x16 128": Shape(16, 128, 128),
    "8x8 256": Shape(8, 256, 256),
    "stride 2": Shape(32, 64, 128, 2),
    "16 to 64": Shape(32, 16, 64),
    "3 to 16": Shape(32, 3, 16),
}
# rows, columns, block, num_warps, num_stages; columns are limited to the output features.
SQUARES = [
    (128, 128, 64, 8, 3),
    (128, 128, 64, 8, 4),
    (128, 128, 32, 8, 5),
    (128, 256, 64, 8, 3),
    (256, 128, 64, 8, 3),
    (128, 64, 64, 4, 3),
    (128, 64, 32, 4, 5),
    (256, 64, 64, 8, 3),
    (64, 64, 128, 4, 3),
    (64, 128, 64, 4, 3),
]
SUMS = [
    (128, 128, 64, 8, 3),
    (128, 128, 32, 8, 5),
    (128, 128, 64, 8, 3),
    (128, 128, 128, 8, 2),
    (128, 64, 64, 4, 3),
    (128, 64, 32, 4, 5),
    (128, 64, 64, 4, 3),
    (128, 64, 128, 4, 2),
    (64, 128, 64, 4, 3),
    (64, 64, 128, 4, 3),
    (256, 64, 64, 8, 3),
]
REPEATS = 7
# One measurement runs at least this long, so that the overhead of Python does not matter.
MEASUREMENT = 4e-3
# Tensor cores truncate each partial sum, always in the same direction.
ERROR_ALLOWED = 1e-3


def conv(stride: int, x: jax.Array, w: jax.Array) -> jax.Array:
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, w, (stride,) * 2, "SAME", dimension_numbers=numbers)


def geometry_of(shape: Shape) -> ConvolutionGeometry:
    x = jax.ShapeDtypeStruct((1, shape.size, shape.size, shape.channels), jnp.bfloat16)
    w = jax.ShapeDtypeStruct((3, 3, shape.channels, shape.features), jnp.bfloat16)
    (eqn,) = jax.make_jaxpr(functools.partial(conv, shape.stride))(x, w).eqns
    return ConvolutionGeometry.of(eqn.params, x.shape, w.shape, eqn.outvars[0].aval.shape)


def inputs(shape: Shape, batch: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    keys, out = jax.random.split(jax.random.key(0), 3), -(-shape.size // shape.stride)
    x = jax.random.normal(keys[0], (batch, shape.size, shape.size, shape.channels), jnp.bfloat16)
    g = jax.random.normal(keys[1], (batch, out, out, shape.features), jnp.bfloat16)
    return x, g, jax.random.uniform(keys[2], (batch,))


def flat(geometry: ConvolutionGeometry, x: jax.Array, g: jax.Array) -> tuple[jax.Array, jax.Array]:
    layout = ImageLayout(geometry, stack=0)
    image = layout.image(geometry.image(x[:, None]))
    return image[:, :, 0], layout.cotangent(geometry.cotangent(g[:, None]))[:, 0]


def weight_gradient(shape: Shape, x: jax.Array, g: jax.Array) -> jax.Array:
    w = jnp.zeros((3, 3, shape.channels, shape.features), x.dtype)
    return jax.vjp(functools.partial(conv, shape.stride, x), w)[1](g)[0]


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}"


def compile_all(forms: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]) -> dict[str, Any]:
    """Compiles each form for its arguments. Those that fail are printed and left out."""
    compiled = {}
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        pending = {}
        for name, (form, arguments) in forms.items():
            try:
                pending[name] = pool.submit(jax.jit(form).lower(*arguments).compile)
            except Exception as error:
                print(f"  {name}: does not lower: {first_line(error)}", flush=True)
        for name, future in pending.items():
            try:
                compiled[name] = future.result()
            except Exception as error:
                print(f"  {name}: does not compile: {first_line(error)}", flush=True)
    return compiled


def milliseconds(call: Callable[..., Any], arguments: tuple[Any, ...]) -> float:
    """Median over `REPEATS` measurements of one call."""

    def several(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            out = call(*arguments)
        jax.block_until_ready(out)
        return (time.perf_counter() - start) / count

    several(1)
    count = min(100, int(MEASUREMENT / several(2)) + 1)
    return 1e3 * statistics.median(several(count) for _ in range(REPEATS))


def named(kind: str, configs: list[tuple[Any, ...]], shape: Shape) -> dict[str, Tiling]:
    """The tilings by name, without duplicates, with columns limited to the output features."""
    tilings = {}
    for rows, columns, *rest in configs:
        columns = min(columns, max(16, 1 << (shape.features - 1).bit_length()))
        text = "/".join(map(str, (rows, columns, *rest[:3])))
        tilings[f"{kind} {text}{'n' if rest[3:] else ''}"] = Tiling(rows, columns, *rest)
    return tilings


def squares_error(found: Any, expected: np.ndarray) -> float:
    return float(np.max(np.abs(np.asarray(found, np.float64) - expected) / expected))


def sum_error(found: Any, expected: np.ndarray) -> float:
    """The largest error over the window offsets."""
    off = np.asarray(found, np.float64) - expected
    norms = [np.sqrt(np.sum(np.square(a), axis=(1, 2))) for a in (off, expected)]
    return float(np.max(norms[0] / norms[1]))


def references(places: Any, operands: tuple[Any, ...]) -> dict[str, Any]:
    """For each kernel, a function that compares a result with the expected one."""
    x, g, factor = operands
    found = {}
    for kind, form, error, arguments in (
        ("squares", xla_shifted_product_squares, squares_error, (x, g)),
        ("sum", xla_shifted_weighted_sum, sum_error, (x, g, factor)),
    ):
        try:
            exact = jax.jit(functools.partial(form, places=places))(*arguments)
            found[kind] = functools.partial(error, expected=np.asarray(exact, np.float64))
        except Exception as failure:
            print(f"  reference of {kind}: {first_line(failure)}", flush=True)
    return found


def best(times: dict[str, float], kind: str) -> tuple[str, float]:
    of_kind = {k.removeprefix(kind + " "): v for k, v in times.items() if k.startswith(kind + " ")}
    name = min(of_kind, key=lambda k: of_kind[k], default="-")
    return name, of_kind.get(name, float("nan"))


HEADER = (
    f"{'shape':10} {'sq err':>8} {'sum err':>8} {'squares':>8} {'TFLOP/s':>8} {'tiling':>16}"
    f" {'sum':>8} {'TFLOP/s':>8} {'tiling':>17} {'layout':>8} {'dW':>8}"
)


def measure(name: str, shape: Shape, batch: int, few_tilings: bool) -> str:
    """The line of one shape. Failures are printed."""
    geometry = geometry_of(shape)
    places = tuple(ImageLayout(geometry, stack=0).places)
    x, g, factor = inputs(shape, batch)
    layout = jax.jit(functools.partial(flat, geometry))
    operands = (*layout(x, g), factor)
    forms: dict[str, Any] = {}
    few = slice(0, 6, 5) if few_tilings else slice(None)
    for key, tile in named("squares", SQUARES[few], shape).items():
        form = functools.partial(shifted_product_squares, places=places, tile=tile)
        forms[key] = form, operands[:2]
    for key, tile in named("sum", SUMS[few], shape).items():
        form = functools.partial(shifted_weighted_sum, places=places, tile=tile)
        forms[key] = form, operands
    forms["layout"] = functools.partial(flat, geometry), (x, g)
    forms["dW"] = functools.partial(weight_gradient, shape), (x, g)
    compiled, expected = compile_all(forms), references(places, operands)
    errors: dict[str, float] = {"squares": float("nan"), "sum": float("nan")}
    times = {}
    for key, call in compiled.items():
        kind, arguments = key.split()[0], forms[key][1]
        try:
            if kind in expected:
                error = expected[kind](call(*arguments))
                errors[kind] = float(np.fmax(errors[kind], error)) if error == error else error
                if not error < ERROR_ALLOWED:
                    print(f"  {key}: WRONG, relative error {error:.1e}, not timed", flush=True)
                    continue
            times[key] = milliseconds(call, arguments)
        except Exception as failure:
            print(f"  {key}: does not run: {first_line(failure)}", flush=True)
    print("  " + "  ".join(f"{k} {v:.3f}" for k, v in times.items()), flush=True)
    work = 2 * batch * geometry.positions * 9 * shape.channels * shape.features
    cells = []
    for kind, width in (("squares", 16), ("sum", 17)):
        text, took = best(times, kind)
        cells.append(f"{took:8.3f} {work / took / 1e9:8.0f} {text:>{width}}")
    others = [times.get(k, float("nan")) for k in ("layout", "dW")]
    return (
        f"{name:10} {errors['squares']:8.1e} {errors['sum']:8.1e} {cells[0]} {cells[1]}"
        f" {others[0]:8.3f} {others[1]:8.3f}"
    )


def check_interpreted() -> int:
    shape = Shape(6, 5, 7, 2)
    geometry = geometry_of(shape)
    places = tuple(ImageLayout(geometry, stack=0).places)
    x, g, factor = inputs(shape, 3)
    operands, tile = (*flat(geometry, x, g), factor), Tiling(16, 16, 16)
    expected = references(places, operands)
    squares = shifted_product_squares(*operands[:2], places, tile=tile, interpret=True)
    total = shifted_weighted_sum(*operands, places, tile=tile, splits=2, interpret=True)
    errors = expected["squares"](squares), expected["sum"](total)
    print(f"no GPU, interpreted only: relative error {errors[0]:.1e}, of the sum {errors[1]:.1e}")
    return int(not max(errors) < ERROR_ALLOWED)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="parts of shape names; by default all shapes")
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--seconds", type=float, default=90, help="then only few tilings are tried")
    args = parser.parse_args()
    if jax.default_backend() != "gpu":
        return check_interpreted()
    start = time.monotonic()
    print(jax.devices()[0].device_kind, "jax", jax.__version__)
    chosen = {
        name: shape
        for name, shape in SHAPES.items()
        if not args.names or any(part in name for part in args.names)
    }
    lines = []
    for name, shape in chosen.items():
        elapsed = time.monotonic() - start
        # If the shapes so far took more than their share of the time, try only few tilings.
        few_tilings = elapsed > args.seconds * (len(lines) + 1) / (len(chosen) + 1)
        try:
            lines.append(measure(name, shape, args.batch, few_tilings))
        except Exception as error:
            lines.append(f"{name:10} {first_line(error)}")
        print(lines[-1], f"  [{time.monotonic() - start:.0f} s]", flush=True)
    print("\n" + "\n".join([HEADER, *lines]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
