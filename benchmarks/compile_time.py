"""How long tracing, lowering and compiling take, relative to `jax.grad`.

    python benchmarks/compile_time.py --rounds 5 --devices 1

The source of the figures for a CPU in docs/clipping.md. Models are small, float32, and have 12
layers where people use 12: the time depends on the number of operations, not on their sizes. Every
round traces, lowers and compiles both programs from nothing (`jax.clear_caches`), one after the
other. Times are processor times, which other processes disturb less than wall-clock times, and the
ratios are those of the medians. `hlo` is the number of instructions of the compiled program, which
does not vary.

With `--devices 8`, batches are split over that many virtual devices.
"""

import argparse
import functools
import re
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import models
import numpy as np

import bevel

GPT = models.GPT_TINY._replace(depth=12)
VIT = models.VIT_TINY | {"layers": 12}
MODELS: dict[str, Callable[..., models.Case]] = {
    "gpt_loop": functools.partial(models.gpt, batch_size=16, size=GPT, layers="loop"),
    "gpt_scan": functools.partial(models.gpt, batch_size=16, size=GPT, layers="scan"),
    "vit": functools.partial(models.vit, batch_size=16, **VIT),
    "mlp": functools.partial(models.mlp, batch_size=64, widths=(64, *[256] * 7, 10)),
    "wrn": functools.partial(models.wrn, batch_size=16, **models.WRN_TINY),
}
STAGES = ("trace", "lower", "compile")


def measure(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[list[float], int]:
    """Processor seconds of each stage, and the number of instructions of the compiled program."""
    jax.clear_caches()
    times = [time.process_time()]
    traced = jax.jit(function).trace(*arguments)
    times.append(time.process_time())
    lowered = traced.lower()
    times.append(time.process_time())
    compiled = lowered.compile()
    times.append(time.process_time())
    instructions = len(re.findall(r"^ +(?:ROOT )?%?[\w.-]+ = ", compiled.as_text(), re.MULTILINE))
    return list(np.diff(times)), instructions


def report(name: str, rounds: int, devices: int) -> None:
    case = MODELS[name](np.dtype("float32"))
    arguments = jax.device_put(case.arguments)
    if devices > 1:
        mesh = jax.make_mesh((devices,), ("data",), devices=jax.devices()[:devices])
        everywhere, split = (
            jax.sharding.NamedSharding(mesh, jax.P(*axes)) for axes in ((), ("data",))
        )
        params, batch, *frozen = arguments
        arguments = (
            jax.device_put(params, everywhere),
            jax.device_put(batch, split),
            *jax.device_put(frozen, everywhere),
        )
    functions = jax.grad(case.loss), bevel.clipped_grad(case.loss, l2_clip_norm=1.0)
    # The first round imports modules and is left out.
    found = [[measure(f, arguments) for f in functions] for _ in range(rounds + 1)][1:]
    medians = [
        [statistics.median(one[i][0][stage] for one in found) for stage in range(len(STAGES))]
        for i in range(2)
    ]
    cells = [
        f"{stage} {plain:6.2f} -> {private:6.2f} s {private / plain:5.2f}x"
        for stage, plain, private in zip(STAGES, *medians, strict=True)
    ]
    plain, private = (found[0][i][1] for i in range(2))
    cells.append(f"hlo {plain:5d} -> {private:5d} {private / plain:5.2f}x")
    print(f"{name:9s} " + "  ".join(cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--devices", type=int, default=1, help="virtual CPU devices")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", options.devices)
    print(f"jax {jax.__version__}, {options.devices} CPU device(s), {options.rounds} rounds")
    for name in options.models:
        report(name, options.rounds, options.devices)


if __name__ == "__main__":
    main()
