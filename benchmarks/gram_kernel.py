"""Checks the Gram kernel on this GPU, and times it for several tilings.

    python benchmarks/gram_kernel.py [--seconds 210] [NAME ...]

Prints one line for each shape of the models in the tables, or for those whose name contains a NAME.
It has the largest error of the kernel relative to XLA in float32, and milliseconds for

    gram  the kernel, with the fastest tiling (tile/block/warps/stages)
    xla   the same sums by XLA: bfloat16 products, float32 sums, T x T matrices in memory
    dW    for comparison: the weight gradient summed over examples, 'ntd,ntk->dk'

TFLOP/s counts the multiplications that are left after symmetry: N T (T + 1) (D + K). The times of
all tilings of a shape are printed too. Without a GPU, the kernel is only checked at one small
shape, in interpret mode.
"""

import argparse
import concurrent.futures
import functools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bevel.clipping.norms.kernels.gram_kernel import gram_sums, xla_gram_sums

# name: (N, T, D, K)
SHAPES = {
    "gpt2 qkv": (32, 512, 768, 2304),
    "gpt2 proj": (32, 512, 768, 768),
    "gpt2 up": (32, 512, 768, 3072),
    "gpt2 down": (32, 512, 3072, 768),
    "gpt2 head": (32, 512, 768, 50257),
    "its K even": (32, 512, 768, 50304),
    "vit qkv": (256, 197, 768, 2304),
    "vit up": (256, 197, 768, 3072),
    "1.3b qkv": (8, 1024, 2048, 6144),
    "1.3b up": (8, 1024, 2048, 8192),
    "1.3b head": (8, 1024, 2048, 50257),
}
GRAM = [  # tile, block_d, num_warps, num_stages
    (128, 64, 8, 3),
    (128, 64, 8, 4),
    (128, 64, 8, 6),
    (128, 128, 8, 2),
    (128, 128, 8, 3),
    (128, 32, 8, 4),
    (64, 64, 4, 4),
    (64, 128, 4, 3),
    (64, 64, 8, 4),
]
REPEATS = 20
# One measurement runs at least this long, so that the overhead of Python does not matter.
MEASUREMENT = 2e-3
# Inputs are rotated, with a total size far above the cache.
ROTATION_BYTES = 400e6
# Tensor cores truncate each of the K / 16 partial sums, always in the same direction.
ERROR_ALLOWED = 1e-3

Form = Callable[[jax.Array, jax.Array], Any]


def gram_form(config: tuple[int, ...]) -> Form:
    names = ("tile", "block_d", "num_warps", "num_stages")
    return functools.partial(gram_sums, **dict(zip(names, config, strict=True)))


def weight_gradient(h: jax.Array, g: jax.Array) -> jax.Array:
    return jnp.einsum("ntd,ntk->dk", h, g, preferred_element_type=jnp.float32)


def reference(h: jax.Array, g: jax.Array) -> Any:
    return xla_gram_sums(h.astype(jnp.float32), g.astype(jnp.float32))


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}"


def compile_all(forms: dict[str, Form], h: jax.Array, g: jax.Array) -> dict[str, Any]:
    """Compiles the forms, several at a time. Those that fail are printed and left out."""
    compiled = {}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        pending = {}
        for name, form in forms.items():
            try:
                pending[name] = pool.submit(jax.jit(form).lower(h, g).compile)
            except Exception as error:
                print(f"  {name}: does not lower: {first_line(error)}", flush=True)
        for name, future in pending.items():
            try:
                compiled[name] = future.result()
            except Exception as error:
                print(f"  {name}: does not compile: {first_line(error)}", flush=True)
    return compiled


def milliseconds(call: Form, sets: list[tuple[jax.Array, jax.Array]]) -> float:
    """Median over `REPEATS` measurements of one call, rotating the inputs."""

    def several(count: int) -> float:
        start = time.perf_counter()
        for k in range(count):
            out = call(*sets[k % len(sets)])
        jax.block_until_ready(out)
        return (time.perf_counter() - start) / count

    several(len(sets))
    count = max(len(sets), min(100, int(MEASUREMENT / several(len(sets))) + 1))
    return 1e3 * statistics.median(several(count) for _ in range(REPEATS))


def time_all(compiled: dict[str, Any], sets: list[tuple[jax.Array, jax.Array]]) -> dict[str, float]:
    times = {}
    for name, call in compiled.items():
        try:
            times[name] = milliseconds(call, sets)
        except Exception as error:
            print(f"  {name}: does not run: {first_line(error)}", flush=True)
    return times


def relative_error(found: Any, expected: Any) -> float:
    """The largest relative error over all examples and outputs, or NaN if any output is NaN."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    off = [np.abs(np.asarray(a, np.float64) - b) / np.abs(b) for a, b in pairs]
    return float(np.max(np.stack(off)))


def errors_of(compiled: dict[str, Any], h: jax.Array, g: jax.Array) -> dict[str, float]:
    """The relative error of each tiling. Empty if the reference itself fails."""
    try:
        expected = jax.tree.map(np.asarray, jax.jit(reference)(h, g))
    except Exception as error:
        print(f"  reference: {first_line(error)}", flush=True)
        return {}
    errors = {}
    for name, call in compiled.items():
        if name.startswith("gram"):
            try:
                errors[name] = relative_error(call(h, g), expected)
            except Exception as error:
                print(f"  {name}: does not run: {first_line(error)}", flush=True)
    return errors


def inputs(shape: tuple[int, ...], seed: int) -> tuple[jax.Array, jax.Array]:
    n, t, *widths = shape
    keys = jax.random.split(jax.random.key(seed))
    h, g = (
        jax.random.normal(key, (n, t, width), jnp.bfloat16)
        for key, width in zip(keys, widths, strict=True)
    )
    return h, g


def best(times: dict[str, float]) -> tuple[str, float]:
    """The fastest tiling of the kernel, and its time."""
    tilings = {k.removeprefix("gram "): v for k, v in times.items() if k.startswith("gram ")}
    name = min(tilings, key=lambda k: tilings[k], default="-")
    return name, tilings.get(name, float("nan"))


HEADER = (
    f"{'shape':10} {'N,T,D,K':>18} {'error':>8} {'gram':>8} {'TFLOP/s':>8} {'tiling':>14}"
    f" {'xla':>8} {'dW':>8}"
)


def measure(name: str, shape: tuple[int, ...], few_tilings: bool) -> str:
    """The line of one shape. Failures are printed."""
    n, t, d, k = shape
    size = 2 * n * t * (d + k)
    sets = [inputs(shape, seed) for seed in range(max(1, min(8, int(ROTATION_BYTES / size))))]
    tilings = GRAM[:2] if few_tilings else GRAM
    forms = {f"gram {'/'.join(map(str, tiling))}": gram_form(tiling) for tiling in tilings}
    forms |= {"xla": xla_gram_sums, "dW": weight_gradient}
    compiled = compile_all(forms, *sets[0])
    errors = errors_of(compiled, *sets[0])
    for form, error in errors.items():
        if not error < ERROR_ALLOWED:
            print(f"  {form}: WRONG, relative error {error:.1e}, not timed", flush=True)
            del compiled[form]
    times = time_all(compiled, sets)
    tiling, gram = best(times)
    rate = n * t * (t + 1) * (d + k) / gram / 1e9
    xla, weights = (times.get(form, float("nan")) for form in ("xla", "dW"))
    print("  " + "  ".join(f"{k} {v:.3f}" for k, v in times.items()), flush=True)
    return (
        f"{name:10} {','.join(map(str, shape)):>18} {max(errors.values(), default=np.nan):8.1e}"
        f" {gram:8.3f} {rate:8.0f} {tiling:>14} {xla:8.3f} {weights:8.3f}"
    )


def check_interpreted() -> int:
    h, g = inputs((2, 37, 24, 40), 0)
    expected = reference(h, g)
    found = gram_sums(h, g, tile=16, block_d=16, interpret=True)
    error = relative_error(found, expected)
    print(f"no GPU, interpreted only: relative error {error:.1e}")
    return int(not error < ERROR_ALLOWED)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="parts of shape names; by default all shapes")
    parser.add_argument(
        "--seconds", type=float, default=210, help="then only few tilings are tried"
    )
    args = parser.parse_args()
    if jax.default_backend() != "gpu":
        return check_interpreted()
    start = time.monotonic()
    print(jax.devices()[0].device_kind, "jax", jax.__version__)
    print(HEADER, flush=True)
    lines = []
    for name, shape in SHAPES.items():
        if args.names and not any(part in name for part in args.names):
            continue
        elapsed = time.monotonic() - start
        # If the shapes so far took more than their share of the time, try only few tilings.
        few_tilings = elapsed > args.seconds * (len(lines) + 2) / (len(SHAPES) + 1)
        try:
            lines.append(measure(name, shape, few_tilings))
        except Exception as error:
            lines.append(f"{name:10} {first_line(error)}")
        print(lines[-1], f"  [{time.monotonic() - start:.0f} s]", flush=True)
    print("\n" + "\n".join([HEADER, *lines]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
