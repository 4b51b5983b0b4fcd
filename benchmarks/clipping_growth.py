"""How the cost of `bevel.clipped_grad` grows with batch, sequence, depth and devices.

    python benchmarks/clipping_growth.py --svg docs/clipping_growth.svg

A small GPT in a `scan` over layers, in float32 on a CPU. One size changes at a time; on several
(virtual) devices, the batch grows with their number. Ratios are to `jax.grad`: temporary bytes per
device as the compiler reports them, FLOPs of matrix products with loops counted in full, and the
median time of a call. The virtual devices share the cores, so time is measured on one only.
"""

import argparse
import datetime
import os
import platform
import re
import statistics
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
)

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import models

import bevel
from bevel.clipping.explain import products
from bevel.report.line_chart import HEIGHT, WIDTH, Axis, Series, axis_of, line_chart

BASE = {"batch": 16, "length": 32, "layers": 2, "devices": 1}
SWEEPS = {
    "batch": (8, 16, 32, 64),
    "length": (16, 32, 64, 128),
    "layers": (1, 2, 4, 8),
    "devices": (1, 2, 4, 8),
}
LABELS = {
    "batch": "examples in the batch",
    "length": "tokens per example",
    "layers": "layers",
    "devices": "devices, 16 examples each",
}
MEASURES = {"temporary memory": 1, "FLOPs": 2, "time": 3}
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1f2328}.name,.key{font-weight:600}.page{fill:#fff}"
    ".line{fill:none;stroke-width:2}.rule,.axis{stroke:#d0d7de;fill:none}"
    ".s1{stroke:#0969da}.s2{stroke:#bc4c00}.s3{stroke:#1a7f37}"
    ".dot.s1{fill:#0969da}.dot.s2{fill:#bc4c00}.dot.s3{fill:#1a7f37}"
)


def measure(batch: int, length: int, layers: int, devices: int, steps: int) -> dict[str, Any]:
    """The ratios of one point; None for those that were not measured."""
    size = models.GPT_TINY._replace(depth=layers, length=length, vocabulary=256)
    case = models.gpt(jnp.dtype("float32"), batch_size=batch * devices, size=size, layers="scan")
    mesh = jax.make_mesh(
        (devices,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices]
    )
    params, data = (
        jax.device_put(tree, NamedSharding(mesh, PartitionSpec(*spec)))
        for tree, spec in ((case.params, ()), (case.batch, ("data",)))
    )
    programs, found = [], []
    for function in (jax.grad(case.loss), bevel.clipped_grad(case.loss, l2_clip_norm=1.0)):
        traced = jax.jit(function).trace(params, data)
        compiled = traced.lower().compile()
        programs.append(compiled)
        temporary = compiled.memory_analysis().temp_size_in_bytes
        found.append([temporary, products(traced.jaxpr)])
    memory, flops = (own / plain for plain, own in zip(*found, strict=True))
    seconds = None
    if devices == 1:
        times: list[list[float]] = [[], []]
        for _ in range(steps):  # in turns, so that drift affects both
            for own, program in zip(times, programs, strict=True):
                start = time.perf_counter()
                jax.block_until_ready(program(params, data))
                own.append(time.perf_counter() - start)
        seconds = statistics.median(times[1]) / statistics.median(times[0])
    return {"temporary memory": memory, "FLOPs": flops, "time": seconds}


def panel(name: str, points: list[dict[str, Any]]) -> str:
    sizes = [float(size) for size in SWEEPS[name]]
    lines = [
        Series(measure, sizes, [point[measure] for point in points], colour, marked=True)
        for measure, colour in MEASURES.items()
        if any(point[measure] is not None for point in points)
    ]
    highest = max(y for line in lines for y in line.y if y is not None)
    up = Axis("times jax.grad", 0.0, max(2.0, highest * 1.05))
    across = axis_of(LABELS[name], sizes, include=(0.0,))
    return line_chart(f"ratios by {LABELS[name]}", across, up, lines)


def picture(panels: list[str], about: str) -> str:
    """Four charts in two rows under a key, as one SVG file."""
    width, height, top = 2 * WIDTH, 2 * HEIGHT + 64, 34
    parts = []
    for i, chart in enumerate(panels):
        place = f'x="{i % 2 * WIDTH}" y="{top + i // 2 * HEIGHT}"'
        size = f'width="{WIDTH}" height="{HEIGHT}"'
        parts.append(re.sub("^<svg ", f"<svg {place} {size} ", chart))
    for i, (name, colour) in enumerate(MEASURES.items()):
        x = 78 + 190 * i
        parts.append(f'<path class="line s{colour}" d="M{x} 18h26"/>')
        parts.append(f'<text class="key" x="{x + 34}" y="22">{name}</text>')
    parts.append(f'<text x="78" y="{height - 10}">{about}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="cost relative to jax.grad"><style>{STYLE}</style>'
        f'<rect class="page" width="{width}" height="{height}"/>{"".join(parts)}</svg>\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--svg", type=Path, default=Path("build/clipping_growth.svg"))
    parser.add_argument("--steps", type=int, default=15)
    options = parser.parse_args()
    panels = []
    print("| size | value | " + " | ".join(MEASURES) + " |\n| --- |" + " --- |" * 4)
    for name, sizes in SWEEPS.items():
        points = []
        for size in sizes:
            points.append(measure(**{**BASE, name: size}, steps=options.steps))
            cells = [f"{x:.2f}x" if x else "" for x in points[-1].values()]
            print(f"| {name} | {size} | {' | '.join(cells)} |", flush=True)
        panels.append(panel(name, points))
    about = (
        f"{platform.machine()} CPU, {os.cpu_count()} cores, {datetime.date.today()}, "
        f"jax {jax.__version__}, bevel {bevel.__version__}"
    )
    print(f"\n{about}")
    options.svg.parent.mkdir(parents=True, exist_ok=True)
    options.svg.write_text(picture(panels, about))


if __name__ == "__main__":
    main()
