"""How much an audit finds: its power table, rates of sabotages, and the bound of one run on MNIST.

python benchmarks/auditing.py power
python benchmarks/auditing.py sabotage
python benchmarks/auditing.py mnist --data mnist.npz

The power table simulates scores of a Gaussian mechanism, the best that any attack can have, so it
takes no training. For each promised epsilon and each factor by which the noise is too small, it
prints in how many of 20 audits the bound passes the promise. The sabotages change what a run would
release at the coordinates of its canaries, for a plan of 12 steps with batches of half of the data,
and score it by the attack on every step; they take no training either. The MNIST run trains a
network of dense layers with and without canaries, and prints the bounds and the times of a step.
"""

import argparse
import dataclasses
import time
from typing import Any

import numpy as np
import optax

from bevel.auditing import CanaryScoreAuditor, audit
from bevel.auditing.gaussian_tradeoff import gaussian_epsilon
from bevel.auditing.promise import limit_of
from bevel.auditing.run_audit import ranks_of
from bevel.auditing.scores import white_box_scores
from bevel.datasets import DataSpec
from bevel.execution_plan import DPSGDConfig, PlanSecrets
from bevel.models import ModelTable, build
from bevel.training import RunOptions, Trainer

DELTA, SIGNIFICANCE, AUDITS = 1e-5, 0.05, 20
UNITS, CANARIES = 5_200, 5_000
OPTIONS = RunOptions(progress=False, compilations=1, checkpoint_every=10_000)


def power() -> None:
    print("| promised epsilon | noise divided by | 500 | 1,000 | 5,000 | 20,000 canaries |")
    print("| --- | --- | --- | --- | --- | --- |")
    rng = np.random.default_rng(0)
    for mu in (0.26, 0.5, 0.95, 1.6):
        promised = gaussian_epsilon(mu, DELTA, 1e-6)
        for factor in (1.0, 1.5, 2.0, 3.0, 4.0):
            found = [_found(rng, factor * mu, promised, m) for m in (500, 1000, 5000, 20_000)]
            cells = " | ".join(f"{count / AUDITS:.0%}" for count in found)
            print(f"| {promised:.1f} | {factor:g} | {cells} |")


def _found(rng: np.random.Generator, mu: float, promised: float, canaries: int) -> int:
    found = 0
    for _ in range(AUDITS):
        held_in = rng.random(canaries) < 0.5
        scores = mu * held_in + rng.normal(size=canaries)
        auditor = CanaryScoreAuditor(scores[held_in], scores[~held_in])
        found += auditor.epsilon_one_run_fdp(SIGNIFICANCE, DELTA, one_sided=False) > promised
    return found


def sabotages() -> None:
    config = DPSGDConfig.default(UNITS, UNITS / 2, 12, noise_multiplier=2.2)
    plan = config.make(secrets=PlanSecrets.for_tests(0))
    twice = DPSGDConfig.default(UNITS, UNITS, 12, noise_multiplier=2.2).sampler()
    promised = plan.epsilon(delta=DELTA)
    bare = np.arange(CANARIES) % 4 == 0  # the canaries of one of two parameters
    rows: dict[str, dict[str, Any]] = {
        "none": {},
        "noise divided by 1.5": {"noise": 1 / 1.5},
        "noise divided by 2": {"noise": 0.5},
        "the same noise at every step": {"repeats": True},
        "no noise on a quarter of the canaries": {"noise": np.where(bare, 0.0, 1.0)},
        "a quarter of the canaries not clipped": {"length": np.where(bare, 4.0, 1.0)},
        "twice the sampling probability": {"sampler": twice},
    }
    print("| sabotage | audits that fail |")
    print("| --- | --- |")
    for name, change in rows.items():
        found = 0
        for seed in range(AUDITS):
            observed, held_in = _released(plan, seed, **change)
            scores = white_box_scores(observed, bare.astype(int), plan)
            ranks = ranks_of(scores)
            auditor = CanaryScoreAuditor(ranks[held_in], ranks[~held_in])
            bound = auditor.epsilon_one_run_fdp(SIGNIFICANCE, DELTA, one_sided=False)
            found += bound > limit_of(plan, DELTA, promised, bound)
        print(f"| {name} | {found / AUDITS:.0%} |", flush=True)


def _released(plan, seed, noise=1.0, length=1.0, repeats=False, sampler=None):
    """The noised sums at the coordinates of canaries, without what other examples contribute."""
    rng = np.random.default_rng([seed, 1])
    used = np.zeros((plan.iterations, UNITS))
    for step, batch in enumerate((sampler or plan.mechanism.sampler).batch_iterator(UNITS, seed)):
        used[step, batch] = 1
    held_in = rng.random(CANARIES) < 0.5
    drawn = rng.normal(size=(1 if repeats else plan.iterations, CANARIES))
    signal = plan.clip.l2_norm_bound * length * used[:, :CANARIES] * held_in
    return signal + plan.noise_stddev * noise * drawn, held_in


def mnist(
    path: str, first_seed: int, runs: int, canaries: int, steps: int, batch_size: int
) -> None:
    with np.load(path) as file:
        x, y = file["x_train"], file["y_train"]
    data = {"x": (x / 255).astype(np.float32)[..., None], "y": y.astype(np.int32)}
    config = DPSGDConfig.default(len(y), batch_size, steps).calibrate(epsilon=4, delta=DELTA)
    print(f"noise multiplier {config.noise_multiplier:.3f}, {steps} steps of {batch_size}")
    dense = build(ModelTable(kind="mlp", widths=(128,)), DataSpec("image", (28, 28, 1), classes=10))
    params = dense.init()
    trainer = Trainer(config=config, loss_fn=dense.loss_fn, optimizer=optax.sgd(0.5))

    def timed(run):
        start = time.perf_counter()
        return run(), time.perf_counter() - start

    found, slower = [], []
    for seed in range(first_seed, first_seed + runs):
        fresh = dataclasses.replace(trainer)
        _, plain = timed(lambda: fresh.fit(data, params, options=OPTIONS))  # noqa: B023
        result, audited = timed(
            lambda: audit(trainer, data, params, canaries=canaries, seed=seed, options=OPTIONS)  # noqa: B023
        )
        found.append(result.epsilon)
        slower.append(audited / plain)
        print(f"epsilon at least {result.epsilon:.2f}; {plain:.0f} s, audited {audited:.0f} s")
    print(result)
    print(f"median: epsilon at least {np.median(found):.2f}, {np.median(slower):.2f} x the time")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["power", "sabotage", "mnist"])
    parser.add_argument("--data")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--canaries", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=16_384)
    given = parser.parse_args()
    if given.what == "power":
        power()
    elif given.what == "sabotage":
        sabotages()
    else:
        size = given.steps, given.batch_size
        mnist(given.data, given.first_seed, given.runs, given.canaries, *size)
