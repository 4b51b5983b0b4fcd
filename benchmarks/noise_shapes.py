"""How the compile time and the memory of noise grow with the number of different shapes.

    python benchmarks/noise_shapes.py                                   # all rows: some minutes
    python benchmarks/noise_shapes.py --layouts one --mechanisms gaussian

The gradient has 2**20 float32 elements in as many leaves as shapes, all different. `seconds` are
processor times of tracing, lowering and compiling, which other processes disturb less than
wall-clock times; `floor` is that of a program which adds 1 to the same leaves, because XLA compiles
a kernel for every array that a program writes. `temporaries` are those of the compiler, relative to
the gradient of one device, and `buffers` what correlated noise keeps between steps. Every layout
runs in a process of its own, because a single device needs no partitioning.
"""

import argparse
import datetime
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import bevel
from bevel.noise_addition import (
    discrete_gaussian_privatizer,
    gaussian_privatizer,
    keys,
    matrix_factorization_privatizer,
)

LAYOUTS = {  # mesh, how leaves are split, kind of axes
    "one": ((1, 1), (), AxisType.Auto),
    "data": ((8, 1), (), AxisType.Auto),
    "tensor": ((4, 2), ("data", "model"), AxisType.Auto),
    "tensor-explicit": ((4, 2), ("data", "model"), AxisType.Explicit),
}
MECHANISMS = ("gaussian", "bandmf", "blt", "discrete")
GENERATORS = ("threefry2x32", "chacha20")
ELEMENTS, BANDS, BUFFERS = 2**20, 4, 4


def gradient(count: int, layout: str, dtype: Any) -> tuple[dict[str, jax.Array], int]:
    """Leaves that are sharded, and the bytes of one device."""
    shape, spec, kind = LAYOUTS[layout]
    mesh = jax.make_mesh(shape, ("data", "model"), axis_types=(kind,) * 2)
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    rows = [8 * (3 + n) for n in range(count)]
    shapes = [(r, max(8, ELEMENTS // count // r // 8 * 8)) for r in rows]
    leaves = {f"w{n}": jax.device_put(np.ones(s, dtype), sharding) for n, s in enumerate(shapes)}
    return leaves, sum(x.addressable_shards[0].data.nbytes for x in leaves.values())


def privatizer(mechanism: str, generator: str) -> Any:
    from bevel.matrix_factorization import buffered_toeplitz, toeplitz

    key = keys.new_key(generator)
    if mechanism == "gaussian":
        return gaussian_privatizer(stddev=1.0, prng_key=key)
    if mechanism == "discrete":
        return discrete_gaussian_privatizer(stddev=1000, prng_key=key)
    if mechanism == "bandmf":
        coefs = toeplitz.optimal_max_error_strategy_coefs(BANDS)
        matrix = toeplitz.inverse_as_streaming_matrix(coefs)
    else:
        with jax.enable_x64(True):
            blt = buffered_toeplitz.BufferedToeplitz.from_rational_approx_to_sqrt_x(BUFFERS)
            matrix = blt.inverse_as_streaming_matrix()
    return matrix_factorization_privatizer(matrix, stddev=1.0, prng_key=key)


def compiled(function: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    donated = tuple(range(len(arguments)))
    begun = time.process_time()
    program = jax.jit(function, donate_argnums=donated).lower(*arguments).compile()
    return program, time.process_time() - begun


def row(mechanism: str, generator: str, layout: str, count: int) -> str:
    with jax.enable_x64(mechanism == "discrete"):
        grads, size = gradient(count, layout, np.int64 if mechanism == "discrete" else np.float32)
        noise = privatizer(mechanism, generator)
        state = noise.init(grads)
        buffers = sum(
            x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(state.buffers) if x.ndim
        )
        program, seconds = compiled(noise.update, grads, state)
        _, floor = compiled(lambda g: jax.tree.map(lambda x: x + 1, g), grads)
        temporary = program.memory_analysis().temp_size_in_bytes
    cells = (mechanism, generator, layout, count, f"{seconds:.2f}", f"{floor:.2f}")
    return f"| {' | '.join(map(str, cells))} | {temporary / size:.2f}x | {buffers / size:.1f}x |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    words = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("--layouts", type=words, default=list(LAYOUTS))
    parser.add_argument("--mechanisms", type=words, default=list(MECHANISMS))
    parser.add_argument("--generators", type=words, default=list(GENERATORS))
    parser.add_argument("--counts", type=words, default=["1", "10", "50", "200"])
    parser.add_argument("--in-this-process", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.in_this_process:
        names = ("mechanism", "generator", "layout", "shapes", "seconds", "floor")
        header = (*names, "temporaries", "buffers")
        print(f"| {' | '.join(header)} |\n|{' --- |' * len(header)}", flush=True)
        for layout in options.layouts:
            command = [sys.executable, *sys.argv, "--layouts", layout, "--in-this-process"]
            subprocess.run(command, check=True)
        cpu = f"{platform.machine()} CPU, {os.cpu_count()} cores"
        versions = f"jax {jax.__version__}, bevel {bevel.__version__}"
        print(f"\n{cpu}, {datetime.date.today()}, {versions}")
        return
    if options.layouts != ["one"]:
        jax.config.update("jax_num_cpu_devices", 8)
    compiled(lambda x: x + 1, np.ones(3, np.float32))  # starts the compiler
    for mechanism in options.mechanisms:
        for generator in options.generators:
            if mechanism == "discrete" and generator != "chacha20":
                continue
            for count in options.counts:
                print(row(mechanism, generator, options.layouts[0], int(count)), flush=True)


if __name__ == "__main__":
    main()
