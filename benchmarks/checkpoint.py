"""Measures what a release costs: a checkpoint in two halves, and the loop around it.

`--halves` compares a checkpoint in two halves with one in a single half. The same Orbax handlers
write both to the same disk, one after the other, and the median of the ratios is reported. A
checkpoint is staged, sealed and published; charging and evaluation are not included. With BandMF,
the private half holds the last noise vectors, which a run needs to resume.

`--loop` trains a perceptron without a folder and in one, with a release every 100 and every 10
steps, one after the other. It reports the time of a step, the median over stretches of 100 steps,
as a ratio to that of the run without a folder and without releases beside it, and the milliseconds
of a release by part. The batch size is chosen so that a step takes about 10 ms. Exits with 1 if a
release every 100 steps makes the loop more than 1.1 times as slow.

python benchmarks/checkpoint.py [--halves] [--loop] [--repeats 15]
"""

import argparse
import datetime
import json
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp

import bevel
from bevel.execution_plan import BandMFConfig, DPSGDConfig
from bevel.training import Progress, RunOptions, Trainer
from bevel.training.array_files import writing_handler
from bevel.training.checkpoint import (
    Checkpoints,
    StateHalves,
    by_name,
    digest_of,
)
from bevel.training.checkpoint_metadata import CheckpointMetadata
from bevel.training.digest import digest
from bevel.training.folder import RunFolder

SIZES = {"2 layers of 64 x 64": (64, 2), "8 layers of 512 x 512": (512, 8)}
SIZES |= {"8 layers of 2048 x 2048": (2048, 8)}
DPSGD = DPSGDConfig(1000, 100, 100, noise_multiplier=1.0)
BANDMF = BandMFConfig(100, 2.0, (1.0, 0.5, 0.25, 0.125), num_examples=1000, noise_multiplier=1.0)


def halves(config, width, layers):
    params = {f"layer{k}": jnp.ones((width, width)) * k for k in range(layers)}
    noise = config.make().noise_addition_transform.init(params)
    return StateHalves({"params": params, "momentum": jax.tree.map(jnp.copy, params)}, noise)


def seconds(work, step):
    start = time.perf_counter()
    work(step)
    return time.perf_counter() - start


def measure(config, width, layers, repeats):
    """Median seconds of a checkpoint, of one half alone, and the median of their ratios."""
    both = halves(config, width, layers)
    jax.block_until_ready(both)
    with tempfile.TemporaryDirectory() as root:
        folder = RunFolder(Path(root) / "run")
        folder.create()
        checkpoints = Checkpoints(folder, keep=1)
        plain = ocp.AsyncCheckpointer(ocp.CompositeCheckpointHandler(released=writing_handler()))

        def in_two(step):
            checkpoints.stage(
                both, CheckpointMetadata(step, 0, "plan", "key", "ledger", digest_of(both)), {}
            )
            checkpoints.wait()
            checkpoints.publish(step)

        def in_one(step):
            arrays = by_name(both)
            digest(arrays)
            saved = ocp.args.Composite(released=ocp.args.PyTreeSave(arrays))
            plain.save(Path(root) / "plain", args=saved, force=True)
            plain.wait_until_finished()

        pairs = []
        for step in range(1, repeats + 3):
            first, second = (in_one, in_two) if step % 2 else (in_two, in_one)
            times_of = {work: seconds(work, step) for work in (first, second)}
            pairs.append((times_of[in_two], times_of[in_one]))
        pairs = pairs[2:]  # the first ones include compilation
        plain.close()
        checkpoints.close()
    median = [statistics.median(times) for times in zip(*pairs, strict=True)]
    return *median, statistics.median(two / one for two, one in pairs), both


WIDTH, STRETCH = 256, 100
# How many times as slow the loop may be with a release every 100 steps of 10 ms.
MOST = 1.1


def loss(params, data, prng):
    hidden = data["x"]
    for weight in params[:-1]:
        hidden = jnp.tanh(hidden @ weight)
    logits = hidden @ params[-1]
    return optax.softmax_cross_entropy_with_integer_labels(logits, data["y"]).mean(), {}


class Times(Progress):
    """Records when each step was dispatched."""

    def __init__(self):
        self.at = {}

    def advance(self, step):
        self.at[step] = time.perf_counter()

    def seconds(self):
        """The median time of a step, over stretches of steps. The first two are left out."""
        stops = range(2 * STRETCH, max(self.at) - STRETCH, STRETCH)
        return statistics.median((self.at[s + STRETCH] - self.at[s]) / STRETCH for s in stops)


def train(batch, steps, every, folder=None):
    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=(20000, WIDTH)).astype(np.float32)}
    data["y"] = rng.integers(10, size=20000)
    params = [jnp.asarray(rng.normal(size=(WIDTH, WIDTH)) / 16, jnp.float32) for _ in range(2)]
    config = DPSGDConfig(20000, batch, steps, noise_multiplier=1.0)
    times = Times()
    trainer = Trainer(config=config, loss_fn=loss, optimizer=optax.sgd(0.1, momentum=0.9))
    options = RunOptions(checkpoint_every=every, delta=1e-5, progress=times, compilations=1)
    trainer.fit(data, [*params, jnp.zeros((WIDTH, 10))], folder=folder, options=options)
    return times.seconds()


def measure_loop(repeats):
    batch = 64
    for _ in range(3):
        batch = max(16, int(batch * 0.010 / train(batch, 5 * STRETCH, 10**9)))
    print(f"\n| release every | alone | in a folder | ratio | batch {batch}: ms of a release |")
    print("| --- | --- | --- | --- | --- |")
    ratios = {}
    for every in (100, 10):
        pairs, parts = [], {}
        for k in range(repeats):
            with tempfile.TemporaryDirectory() as root:
                folder = Path(root) / "run"
                runs = {"alone": (10**9, None), "folder": (every, folder)}
                order = sorted(runs, reverse=bool(k % 2))
                found = {name: train(batch, 10 * STRETCH, *runs[name]) for name in order}
                pairs.append((found["alone"], found["folder"]))
                record = json.loads((folder / "private" / "run.json").read_text())
            releases = 10 * STRETCH / every
            own = {"fit thread": record["seconds_by_part"]["checkpoints"]}
            for name, seconds in (own | record["seconds_of_releases"]).items():
                parts.setdefault(name, []).append(1e3 * seconds / releases)
        alone, inside = (statistics.median(times) * 1e3 for times in zip(*pairs, strict=True))
        ratio = ratios[every] = statistics.median(b / a for a, b in pairs)
        by_part = ", ".join(f"{name} {statistics.median(ms):.1f}" for name, ms in parts.items())
        print(
            f"| {every} | {alone:.2f} ms | {inside:.2f} ms | {ratio:.2f} | {by_part} |", flush=True
        )
    return ratios[100]


def measure_halves(repeats):
    print("| state | mechanism | one half | both halves | ratio | private half |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, (width, layers) in SIZES.items():
        for kind, config in (("DP-SGD", DPSGD), ("BandMF, 4 bands", BANDMF)):
            two, one, ratio, state = measure(config, width, layers, repeats)
            private = sum(x.nbytes for x in jax.tree.leaves(state.private))
            print(
                f"| {name} | {kind} | {one * 1e3:.1f} ms | {two * 1e3:.1f} ms | {ratio:.2f} "
                f"| {private / 1e6:.1f} MB |"
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--halves", action="store_true")
    parser.add_argument("--loop", action="store_true")
    parser.add_argument("--repeats", type=int)
    options = parser.parse_args()
    if options.halves or not options.loop:
        measure_halves(options.repeats or 15)
    ratio = measure_loop(options.repeats or 5) if options.loop or not options.halves else 0.0
    print(
        f"{platform.machine()} {jax.default_backend()}, {datetime.date.today()}, jax "
        f"{jax.__version__}, orbax {ocp.__version__}, bevel {bevel.__version__}"
    )
    if ratio > MOST:
        print(f"a release every 100 steps makes the loop {ratio:.2f}x as slow: at most {MOST}x")
    return 1 if ratio > MOST else 0


if __name__ == "__main__":
    sys.exit(main())
