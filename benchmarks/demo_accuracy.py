"""Test accuracy of `bevel demo`: five seeds, with and without privacy.

    python benchmarks/demo_accuracy.py             # as the demo runs
    python benchmarks/demo_accuracy.py --tune      # on a fifth of the training set

A seed is that of the initial parameters and, since the figures should come out again, of the noise
and the batches too. `--tune` is for choosing options: it never sees the test set.
Epsilon is that of one run, tuning excluded.
"""

import argparse
import dataclasses
import datetime
import os
import platform
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax

import bevel
from bevel.cli.config import DataTable
from bevel.cli.demo import DIGITS, without_privacy
from bevel.cli.job import Job, use_cpu_devices


def accuracy(config, seed: int) -> tuple[float, float]:
    """Test accuracy of one run, and its seconds, compilation included."""
    begun = time.perf_counter()
    config = dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, init_seed=seed),
        run=dataclasses.replace(config.run, test_seed=seed, checkpoint_every=config.plan.steps),
    )
    job = Job(config)
    found = job.final_accuracy(job.fit(progress=False))
    return found, time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tune", action="store_true")
    given = parser.parse_args()
    config = dataclasses.replace(DIGITS, data=DataTable(tune=given.tune))
    use_cpu_devices(config.mesh.cpu_devices)
    budget = f"epsilon {config.plan.epsilon:g}, delta {config.plan.delta:g}"
    print("| privacy | median accuracy | each | seconds |\n| --- | --- | --- | --- |")
    for name, row in ((budget, config), ("none", without_privacy(config))):
        found, seconds = zip(*(accuracy(row, seed) for seed in range(given.seeds)), strict=True)
        each = ", ".join(f"{a:.1%}" for a in found)
        middle, took = statistics.median(found), statistics.median(seconds)
        print(f"| {name} | {middle:.1%} | {each} | {took:.0f} |", flush=True)
    versions = f"jax {jax.__version__}, bevel {bevel.__version__}"
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    print(f"\n{machine}, {datetime.date.today()}, {versions}, mesh {config.mesh.axes}")


if __name__ == "__main__":
    main()
