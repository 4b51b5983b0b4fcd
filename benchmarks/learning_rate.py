"""Measures the distance R of `bevel/choosing/learning_rate.py` on digits, in several settings.

    python benchmarks/learning_rate.py      # half an hour on two cores

In each setting the learning rate is R / sqrt(steps (1 + s^2)) for several R, times 0.1 for a
momentum of 0.9. Accuracy is measured on a fifth of the training set, and never on the test set.
"""

import dataclasses
import datetime
import math
import os
import platform
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax

import bevel
from bevel.choosing import NoisePoint
from bevel.choosing.learning_rate import noise_norm
from bevel.choosing.noise_curve import steps_of
from bevel.cli.config import Config, OptimizerTable, PlanTable, RunTable
from bevel.cli.job import Job
from bevel.datasets import DataTable
from bevel.models import ModelTable

DISTANCES = (8, 16, 32, 64, 128)
SEEDS = 2
# kind, widths, epsilon, epochs, batch sizes
SETTINGS = (
    ("linear", (), 4.0, 40, (64, 256, 1024)),
    ("linear", (), 1.0, 40, (64, 256)),
    ("mlp", (64,), 4.0, 40, (64, 256)),
    ("conv", (8, 16), 4.0, 40, (64, 128, 256, 512)),
    ("conv", (8, 16), 1.0, 40, (32, 64, 256)),
    ("conv", (8, 16), 4.0, 10, (64, 256)),
)


def accuracy(config: Config, distance: float, seed: int) -> tuple[float, float]:
    """The learning rate of this distance, and the accuracy of a run with it."""
    steps = config.plan.steps
    config = dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, init_seed=seed),
        run=RunTable(test_seed=seed, checkpoint_every=steps),
    )
    job = Job(config)
    parameters = sum(x.size for x in jax.tree.leaves(job.init()))
    multiplier = job.plan.mechanism.noise_multiplier
    noise = noise_norm(NoisePoint(config.plan.batch_size, steps, multiplier), parameters)
    rate = 0.1 * distance / math.sqrt(steps * (1 + noise**2))
    job = Job(dataclasses.replace(config, optimizer=OptimizerTable(learning_rate=rate)))
    return rate, job.final_accuracy(job.fit(progress=False))


def main() -> None:
    print("| model | epsilon | epochs | batch | best R | its learning rate | accuracy at each R |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    data = DataTable(tune=True)
    units = len(Job(Config(PlanTable(1, 1), data=data)).data.train)
    for kind, widths, epsilon, epochs, sizes in SETTINGS:
        for size in sizes:
            plan = PlanTable(size, steps_of(epochs, units, size), epsilon=epsilon, delta=1e-5)
            config = Config(plan, data=data, model=ModelTable(kind=kind, widths=widths))
            found = {}
            for distance in DISTANCES:
                runs = [accuracy(config, distance, seed) for seed in range(SEEDS)]
                found[distance] = (statistics.mean(a for _, a in runs), runs[0][0])
            best = max(found, key=lambda distance: found[distance])
            each = ", ".join(f"{d}: {a:.1%}" for d, (a, _) in found.items())
            row = f"| {kind} | {epsilon:g} | {epochs} | {size} | {best} | {found[best][1]:.2g} "
            print(f"{row}| {each} |", flush=True)
    versions = f"jax {jax.__version__}, bevel {bevel.__version__}"
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    print(f"\n{machine}, {datetime.date.today()}, {versions}, {SEEDS} seeds")


if __name__ == "__main__":
    main()
