"""Measures the test accuracy of `bevel demo` over five seeds, with and without privacy.

    python benchmarks/demo_accuracy.py             # as the demo runs
    python benchmarks/demo_accuracy.py --tune      # on a fifth of the training set

Each seed determines the initial parameters and, so that the figures are reproducible, also the
noise and the batches. `--tune` is for choosing options and never uses the test set. Epsilon covers
one run, not the tuning.
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
from bevel.cli.demo import DIGITS, without_privacy
from bevel.cli.job import Job, use_cpu_devices
from bevel.datasets import DataTable


def accuracy(config, seed: int) -> tuple[float, float]:
    """Test accuracy of one run, and its seconds including compilation."""
    start = time.perf_counter()
    config = dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, init_seed=seed),
        run=dataclasses.replace(config.run, test_seed=seed, checkpoint_every=config.plan.steps),
    )
    job = Job(config)
    test_accuracy = job.final_accuracy(job.fit(progress=False))
    return test_accuracy, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tune", action="store_true")
    options = parser.parse_args()
    config = dataclasses.replace(DIGITS, data=DataTable(tune=options.tune))
    use_cpu_devices(config.mesh.cpu_devices)
    budget = f"epsilon {config.plan.epsilon:g}, delta {config.plan.delta:g}"
    print("| privacy | median accuracy | each | seconds |\n| --- | --- | --- | --- |")
    for name, row in ((budget, config), ("none", without_privacy(config))):
        runs = (accuracy(row, seed) for seed in range(options.seeds))
        accuracies, seconds = zip(*runs, strict=True)
        each = ", ".join(f"{a:.1%}" for a in accuracies)
        median, median_seconds = statistics.median(accuracies), statistics.median(seconds)
        print(f"| {name} | {median:.1%} | {each} | {median_seconds:.0f} |", flush=True)
    versions = f"jax {jax.__version__}, bevel {bevel.__version__}"
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    print(f"\n{machine}, {datetime.date.today()}, {versions}, mesh {config.mesh.axes}")


if __name__ == "__main__":
    main()
