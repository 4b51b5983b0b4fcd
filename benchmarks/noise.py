"""Measures the cost of noise relative to the time of reading and writing the same bytes.

    python benchmarks/noise.py                  # small sizes, for a CPU: under a minute
    python benchmarks/noise.py --size full      # 1e8 parameters, for a GPU
    python benchmarks/noise.py --size full --cases gpt_loop_32

The floor of a row is the time to move the bytes that its step must move, at the bandwidth of a
plain copy of an array of that size in the same run. A gradient is read and a sum is written; BandMF
also reads 15 buffers and writes one, and BLT reads and writes 4. Drawing the noise needs no memory,
so a ratio of 1 would mean that it costs nothing. Times are medians over rounds, row after row, so
that drift affects all rows equally, and are also given per 1e8 parameters. Short steps are timed
several at a time. The JSON is written after every case, so an interrupted run keeps its results.

The case of a model uses all its parameters, and compares the noise with the step of `clipped_grad`.
The normals depend on the compiler's logarithm and square root, so the last line compares them with
the float64 quantiles on this machine. The script needs only jax, numpy and optax.
"""

import argparse
import datetime
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import clipping
import models

import bevel
from bevel.noise_addition import (
    discrete_gaussian_privatizer,
    gaussian_privatizer,
    keys,
    matrix_factorization_privatizer,
)
from bevel.noise_addition.normal import normal_from_bits

SIZES = {"small": 2**20, "full": 10**8}
BANDS, BUFFERS = 16, 4
GENERATORS = ("threefry2x32", "chacha20")
MODEL = "gpt_loop_32"
SHARE = 0.05  # the largest fraction of a model's step that noise may take
QUANTILE_ERROR = 5e-7  # relative error that `normal_from_bits` promises
SHORT_STEP = 0.02  # seconds; shorter steps are timed several at a time


class Case(NamedTuple):
    """One row: a program that is called repeatedly, and the bytes that it must move."""

    name: str
    generator: str
    run: Callable[[Any, Any], tuple[Any, Any]]  # (gradient, state) -> (result, state)
    gradient: Any
    state: Any
    bytes_moved: float

    @property
    def parameters(self) -> int:
        return sum(x.size for x in jax.tree.leaves(self.gradient))


def copying(size: int) -> Case:
    """The floor: every number is read once and written once."""
    x = jnp.ones(size, jnp.float32)
    return Case("copy", "", lambda g, s: (g * 1.5, s), x, (), 8.0 * size)


def drawing(generator: str, size: int) -> Case:
    """64 random bits per parameter from `jax.random.bits`, reduced to one word."""
    key = keys.new_key(generator)

    def run(gradient: Any, step: Any) -> tuple[Any, Any]:
        words = jax.random.bits(jax.random.fold_in(key, step), (2, size))
        return words[0] ^ words[1], step + np.uint32(1)

    return Case("bits", generator, run, jnp.ones(size), jnp.uint32(0), 4.0 * size)


def plain_normal(size: int) -> Case:
    """`jax.random.normal` with 23 bits per number: the cost of noise without bevel's promises."""
    key = keys.new_key("threefry2x32")

    def run(gradient: Any, step: Any) -> tuple[Any, Any]:
        noise = jax.random.normal(jax.random.fold_in(key, step), gradient.shape)
        return gradient + noise, step + np.uint32(1)

    return Case("jax.random.normal", "threefry2x32", run, jnp.ones(size), jnp.uint32(0), 8.0 * size)


def privatizing(name: str, privatizer: Any, gradient: Any, arrays: float) -> Case:
    """A privatizer that must move `arrays` times the size of the gradient."""
    size = sum(x.size for x in jax.tree.leaves(gradient))
    generator = privatizer.record.generator
    state = privatizer.init(gradient)
    return Case(name, generator, privatizer.update, gradient, state, 4.0 * arrays * size)


def band_matrix() -> Any:
    from bevel.matrix_factorization import toeplitz

    return toeplitz.inverse_as_streaming_matrix(toeplitz.optimal_max_error_strategy_coefs(BANDS))


def buffered_matrix() -> Any:
    from bevel.matrix_factorization import buffered_toeplitz

    with jax.enable_x64(True):
        blt = buffered_toeplitz.BufferedToeplitz.from_rational_approx_to_sqrt_x(BUFFERS)
        return blt.inverse_as_streaming_matrix()


def discrete(size: int) -> Case:
    """Discrete noise on an eighth of the parameters, in integers of 8 bytes."""
    gradient = jnp.ones(size // 8, jnp.int64)
    return privatizing("discrete", discrete_gaussian_privatizer(stddev=1000), gradient, 4)


def single_leaf_cases(name: str, size: int) -> list[Callable[[], Case]]:
    """Functions that build the rows of a case."""

    def correlated(generator: str, matrix: Callable[[], Any], arrays: float) -> Case:
        key = keys.new_key(generator)
        privatizer = matrix_factorization_privatizer(matrix(), stddev=1.0, prng_key=key)
        return privatizing(name, privatizer, jnp.ones(size), arrays)

    def gaussian(generator: str) -> Case:
        privatizer = gaussian_privatizer(stddev=1.0, prng_key=keys.new_key(generator))
        return privatizing(name, privatizer, jnp.ones(size), 2)

    makers: dict[str, list[Callable[[], Case]]] = {
        "bits": [lambda g=g: drawing(g, size) for g in GENERATORS],
        "normal": [lambda: plain_normal(size)],
        "gaussian": [lambda g=g: gaussian(g) for g in GENERATORS],
        "bandmf": [lambda g=g: correlated(g, band_matrix, 2 + BANDS) for g in GENERATORS],
        "blt": [lambda g=g: correlated(g, buffered_matrix, 2 + 2 * BUFFERS) for g in GENERATORS],
        "discrete": [lambda: discrete(size)],
    }
    return makers[name]


NAMES = ("bits", "normal", "gaussian", "bandmf", "blt", "discrete", MODEL)


def model_cases(size: str) -> list[Callable[[], Case]]:
    """The clipping step of a model, and Gaussian noise on its gradient from each generator."""
    case = models.make(MODEL, size, "bfloat16")
    gradient = jax.tree.map(jnp.asarray, case.params)

    def clipped() -> Case:
        step = clipping.column_function("bevel", case)
        # This row has no gradient as input, so it is called with the parameters instead.
        run = lambda params, state: (step(params, *case.arguments[1:]), state)  # noqa: E731
        return Case(f"{MODEL}: clipped_grad", "", run, gradient, (), 0.0)

    def noise(generator: str) -> Case:
        privatizer = gaussian_privatizer(stddev=1.0, prng_key=keys.new_key(generator))
        return privatizing(f"{MODEL}: noise", privatizer, gradient, 2)

    return [clipped, *(lambda g=g: noise(g) for g in GENERATORS)]


class Timed:
    """A compiled case that is called repeatedly with its own state."""

    def __init__(self, case: Case):
        self.case, self.state, self.seconds = case, case.state, []
        start = time.perf_counter()
        lowered = jax.jit(case.run, donate_argnums=1).lower(case.gradient, case.state)
        self.program = lowered.compile()
        self.compile_s = time.perf_counter() - start
        self.seconds_per_call(1)
        self.calls = min(50, math.ceil(SHORT_STEP / self.seconds_per_call(1)))

    def seconds_per_call(self, calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            result, self.state = self.program(self.case.gradient, self.state)
        jax.block_until_ready((result, self.state))
        return (time.perf_counter() - start) / calls

    def record_time(self) -> None:
        self.seconds.append(self.seconds_per_call(self.calls))

    @property
    def ms(self) -> float:
        return 1e3 * statistics.median(self.seconds)


def measure(makers: list[Callable[[], Case]], size: int, steps: int) -> list[dict]:
    """The rows of one case, timed in rounds together with a copy."""
    timed, rows = [], []
    for make in [lambda: copying(size), *makers]:
        try:
            timed.append(Timed(make()))
        except Exception as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            rows.append({"case": "?", "failed": text[:200].replace("|", "/")})
    for _ in range(steps):
        for one in timed:
            one.record_time()
    copy, *others = timed
    bandwidth = copy.case.bytes_moved / copy.ms
    first = next((t for t in others if t.case.generator == GENERATORS[0]), None)
    for one in others:
        floor = one.case.bytes_moved / bandwidth
        row = {"case": one.case.name, "generator": one.case.generator, "ms": one.ms}
        row["ms_per_1e8"] = one.ms * 1e8 / one.case.parameters
        row["compile_s"] = one.compile_s
        if floor:
            row |= {"floor_ms": floor, "to_floor": one.ms / floor}
        if first is not None and one.case.generator == GENERATORS[1]:
            row["to_threefry"] = one.ms / first.ms
        if one.case.name.endswith("noise"):
            row["share_of_step"] = one.ms / others[0].ms
        rows.append(row)
    rows.append({"case": "copy", "gigabytes_per_second": bandwidth / 1e6, "ms": copy.ms})
    return rows


def quantile_error(count: int = 2**20) -> float:
    """The largest relative error of float32 normals, for bits from the whole range."""
    rng = np.random.default_rng(0)
    spread = (2.0 ** rng.uniform(0, 63, count)).astype(np.uint64)
    both_ends = np.concatenate([spread, np.uint64(2**63 - 1) - spread])
    integers = np.concatenate([both_ends, rng.integers(0, 2**64, count, np.uint64)])
    words = (integers >> np.uint64(32)).astype(np.uint32), integers.astype(np.uint32)
    with jax.enable_x64(True):
        normals = jax.jit(normal_from_bits, static_argnums=1)
        exact = np.asarray(normals(words, np.float64))
        return float(np.max(np.abs(np.asarray(normals(words, np.float32)) / exact - 1)))


COLUMNS = {
    "case": str,
    "generator": str,
    "ms": "{:.4g}".format,
    "ms_per_1e8": "{:.4g}".format,
    "floor_ms": "{:.3g}".format,
    "to_floor": "{:.2f}x".format,
    "to_threefry": "{:.2f}x".format,
    "share_of_step": "{:.1%}".format,
    "compile_s": "{:.1f}".format,
    "failed": str,
}


def line(row: dict) -> str:
    if "gigabytes_per_second" in row:
        return f"| copy: {row['gigabytes_per_second']:.0f} GB/s |" + " |" * (len(COLUMNS) - 1)
    cells = (show(row[key]) if key in row else "" for key, show in COLUMNS.items())
    return "| " + " | ".join(cells) + " |"


def environment() -> dict[str, Any]:
    device = jax.devices()[0]
    cpu = f"{platform.machine()} CPU, {os.cpu_count()} cores"
    packages = (jax, np, optax, bevel)
    return {
        "machine": cpu if device.platform == "cpu" else device.device_kind,
        "date": str(datetime.date.today()),
        "versions": ", ".join(
            [
                f"Python {platform.python_version()}",
                *(f"{p.__name__} {p.__version__}" for p in packages),
            ]
        ),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--cases", type=lambda text: text.split(","), default=list(NAMES))
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--json", type=Path, default=Path("build/noise.json"))
    options = parser.parse_args()
    unknown = set(options.cases) - set(NAMES)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))} (known: {', '.join(NAMES)})")
    size = SIZES[options.size]
    print("| " + " | ".join(COLUMNS) + " |\n|" + " --- |" * len(COLUMNS), flush=True)
    report = {**environment(), "size": size, "rows": []}
    rows = report["rows"]
    options.json.parent.mkdir(parents=True, exist_ok=True)
    for name in options.cases:
        with jax.enable_x64(name == "discrete"):
            makers = model_cases(options.size) if name == MODEL else single_leaf_cases(name, size)
            found = measure(makers, size, options.steps)
        rows += found
        print("\n".join(map(line, found)), flush=True)
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    error = report["quantile_error"] = quantile_error()
    options.json.write_text(json.dumps(report, indent=1) + "\n")
    print("\n{machine}, {date}, {versions}".format(**report))
    print(f"relative error of the normals: {error:.1e} (promised: {QUANTILE_ERROR:.0e})")
    shares = [row["share_of_step"] for row in rows if "share_of_step" in row]
    too_much = options.size == "full" and max(shares, default=0.0) > SHARE
    if too_much:
        print(f"noise takes {max(shares):.1%} of the step of {MODEL}: more than {SHARE:.0%}")
    failed = any("failed" in row for row in rows)
    return 1 if too_much or failed or not error <= QUANTILE_ERROR else 0


if __name__ == "__main__":
    sys.exit(main())
