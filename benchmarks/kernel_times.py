"""Lists the kernels of one step on a GPU by total time.

    python benchmarks/kernel_times.py vit bfloat16 grad,bevel [FOLDER]

Each line has the time of a kernel in one step, how often it ran, and its name in the compiled
program. With FOLDER, the compiled programs are written there, so that you can look the names up.
"""

import collections
import sys
import tempfile
from pathlib import Path

import clipping
import jax
import models

STEPS = 3
SHOWN = 45


def kernels(program, arguments) -> dict[str, list[float]]:
    """Milliseconds of every kernel launch of one step, by kernel name."""
    jax.block_until_ready(program(*arguments))
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(STEPS):
                jax.block_until_ready(program(*arguments))
        (file,) = Path(folder).rglob("*.xplane.pb")
        profile = jax.profiler.ProfileData.from_file(str(file))
    found = collections.defaultdict(list)
    for plane in profile.planes:
        if not plane.name.startswith("/device:GPU"):
            continue
        for line in plane.lines:
            if "Stream" not in line.name:
                continue
            for event in line.events:
                found[event.name].append(event.duration_ns / 1e6 / STEPS)
    return found


def main() -> int:
    name, dtype, columns, *folder = sys.argv[1:]
    case = models.make(name, "full", jax.numpy.dtype(dtype))
    for column in columns.split(","):
        program = jax.jit(clipping.column_function(column, case)).lower(*case.arguments).compile()
        if folder:
            file = f"{name}_{column}.txt".replace("/", "_")
            Path(folder[0], file).write_text(program.as_text())
        found = kernels(program, case.arguments)
        total = sum(sum(times) for times in found.values())
        print(
            f"{name} {column}: {total:.2f} ms in {sum(map(len, found.values())) // STEPS} kernels"
        )
        for kernel, times in sorted(found.items(), key=lambda x: -sum(x[1]))[:SHOWN]:
            print(f"  {sum(times):8.3f} ms {len(times) // STEPS:5} x  {kernel[:90]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
