"""How much an audit finds: its power table, and the bound of one run on MNIST.

python benchmarks/auditing.py power
python benchmarks/auditing.py mnist --data mnist.npz

The power table simulates scores of a Gaussian mechanism, the best that any attack can have, so it
takes no training. For each promised epsilon and each factor by which the noise is too small, it
prints in how many of 20 audits the bound passes the promise. The MNIST run trains a network of
dense layers with and without canaries, and prints the bounds and the times of a step.
"""

import argparse
import dataclasses
import time

import jax
import numpy as np
import optax

from bevel.auditing import CanaryScoreAuditor, audit
from bevel.auditing.gaussian_tradeoff import gaussian_epsilon
from bevel.datasets import DataSpec
from bevel.execution_plan import DPSGDConfig
from bevel.models import ModelTable, build
from bevel.training import RunOptions, Trainer

DELTA, SIGNIFICANCE, AUDITS = 1e-5, 0.05, 20
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


def mnist(
    path: str, first_seed: int, runs: int, canaries: int, steps: int, batch_size: int
) -> None:
    with np.load(path) as file:
        x, y = file["x_train"], file["y_train"]
    data = {"x": (x / 255).astype(np.float32)[..., None], "y": y.astype(np.int32)}
    config = DPSGDConfig.default(len(y), batch_size, steps).calibrate(epsilon=4, delta=DELTA)
    print(f"noise multiplier {config.noise_multiplier:.3f}, {steps} steps of {batch_size}")
    dense = build(ModelTable(kind="mlp", widths=(128,)), DataSpec("image", (28, 28, 1), classes=10))
    params = dense.init(jax.random.key(0))
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
    parser.add_argument("what", choices=["power", "mnist"])
    parser.add_argument("--data")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--canaries", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=16_384)
    given = parser.parse_args()
    if given.what == "power":
        power()
    else:
        size = given.steps, given.batch_size
        mnist(given.data, given.first_seed, given.runs, given.canaries, *size)
