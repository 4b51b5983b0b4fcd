"""Compares the default model of each kind of data with a linear model, under privacy.

    python benchmarks/model_defaults.py

The learning rate of each model is the best of three on a fifth of the training set, which epsilon
does not cover. The figures are the median of three seeds on the test set. Next tokens come from a
Markov chain in which a token depends on the two before it.
"""

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
import numpy as np

import bevel
from bevel.cli.config import Config, MeshTable, ModelTable, OptimizerTable, PlanTable, RunTable
from bevel.cli.job import Job, use_cpu_devices
from bevel.datasets import DataSet, DataSpec, DataTable
from bevel.training.data import ArraySource

RATES, SEEDS = (0.5, 1.0, 2.0), 3
SOURCES = ("digits", "breast_cancer", "sequences")


def next_tokens(tune: bool) -> DataSet:
    """4,000 training sequences of 16 tokens, of which tuning holds out the last fifth."""
    rng, length, tokens = np.random.default_rng(0), 17, 16
    shares = rng.dirichlet(np.full(tokens, 0.1), (tokens, tokens))
    rows = np.zeros((5000, length), np.int32)
    rows[:, :2] = rng.integers(0, tokens, (5000, 2))
    for t in range(2, length):
        sums = shares[rows[:, t - 2], rows[:, t - 1]].cumsum(-1)
        rows[:, t] = (rng.random((5000, 1)) > sums).sum(-1).clip(max=tokens - 1)
    spec = DataSpec("tokens", (length - 1,), "int32", vocabulary=tokens, target="next token")
    cut, end = (3200, 4000) if tune else (4000, 5000)
    parts = (rows[:cut], rows[cut:end])
    return DataSet(spec, *(ArraySource({"x": r[:, :-1], "y": r[:, 1:]}) for r in parts))


def metric(source: str, kind: str, rate: float, seed: int, tune: bool) -> float:
    """A test metric that is better if it is higher: accuracy, or minus perplexity."""
    config = Config(
        plan=PlanTable(batch_size=512, steps=100, epsilon=4.0, delta=1e-4, clip_norm=0.5),
        data=DataTable(source, tune=tune),
        model=ModelTable(kind=kind, init_seed=seed),
        optimizer=OptimizerTable(learning_rate=rate, momentum=0.9, ema_decay=0.9),
        mesh=MeshTable(cpu_devices=1),
        run=RunTable(test_seed=seed, checkpoint_every=100),
    )
    if source == "breast_cancer":
        config = dataclasses.replace(config, plan=dataclasses.replace(config.plan, batch_size=256))
    job = Job(config)
    if source == "next tokens":
        vars(job)["data"] = next_tokens(tune)
    metrics = job.final_metrics(job.fit(progress=False))
    return metrics.get("test_accuracy", -metrics.get("test_perplexity", 0.0))


def main() -> None:
    use_cpu_devices(1)
    start = time.perf_counter()
    print("| data | model | learning rate | median | each |\n| --- | --- | --- | --- | --- |")
    for source in (*SOURCES, "next tokens"):
        for kind in ("linear", "auto"):
            rate = max(RATES, key=lambda r: metric(source, kind, r, SEEDS, tune=True))
            values = [abs(metric(source, kind, rate, seed, tune=False)) for seed in range(SEEDS)]
            form = "perplexity {:.2f}" if source == "next tokens" else "{:.1%}"
            each = ", ".join(map(form.format, values))
            middle = form.format(statistics.median(values))
            print(f"| {source} | {kind} | {rate:g} | {middle} | {each} |", flush=True)
    print(
        f"\nepsilon 4, delta 1e-4; {time.perf_counter() - start:.0f} s; {platform.machine()}, "
        f"{os.cpu_count()} cores; {datetime.date.today()}; jax {jax.__version__}, bevel "
        f"{bevel.__version__}"
    )


if __name__ == "__main__":
    main()
