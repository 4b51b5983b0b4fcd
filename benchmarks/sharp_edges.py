"""Prints the table of sharp edges in the README as Markdown, with machine, date and versions.

python benchmarks/sharp_edges.py
"""

import datetime
import os
import platform
import sys

import jax

import bevel
from bevel.cli import sharp_edges as demo

COLUMNS = (
    "where the sharding constraint is",
    "bevel: error",
    "FLOPs",
    "collectives",
    "plain `vmap(grad)`: error",
    "FLOPs",
    "collectives",
)


def main() -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", demo.DEVICES)
    print("|", " | ".join(COLUMNS), "|")
    print("|", " | ".join(["---"] * len(COLUMNS)), "|")
    for edge in demo.EDGES:
        print("|", " | ".join(demo.run_edge(edge)), "|", flush=True)
    print(
        f"\n{platform.machine()} CPU, {os.cpu_count()} cores, {datetime.date.today()}, "
        f"Python {sys.version.split()[0]}, jax {jax.__version__}, bevel {bevel.__version__}"
    )


if __name__ == "__main__":
    main()
