"""Measures what a run keeps in memory: a fresh run, a resumed one, and a checkpoint.

Each case runs in a process of its own, and everything is given in multiples of the training state
(parameters, both moments of Adam, and the noise state if it has buffers). "Arrays" are the live
arrays of JAX without those of the caller. "Peak" is the growth of the memory of the process since
before the first array of the state was made: on a CPU, it holds what a device and its host hold
together.

python benchmarks/checkpoint_memory.py [--megabytes 240]
"""

import argparse
import datetime
import gc
import json
import platform
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp

import bevel
from bevel.execution_plan import BandMFConfig, DPSGDConfig
from bevel.training import RunOptions, Trainer
from bevel.training.checkpoint import Checkpoints, StateHalves, digest_of
from bevel.training.checkpoint_metadata import CheckpointMetadata
from bevel.training.folder import RunFolder

STEPS, LAYERS, EXAMPLES = 8, 4, 64
MEGABYTES = 240


class Watched:
    """Samples live arrays and the memory of the process in a thread."""

    def __init__(self):
        gc.collect()
        self.live = self.peak = 0
        self._live_before, self._before = live_bytes(), resident_bytes()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._ends.set()
        self._thread.join()

    def _sample(self):
        while not self._ends.wait(0.001):
            self.live = max(self.live, live_bytes() - self._live_before)
            self.peak = max(self.peak, resident_bytes() - self._before)


def live_bytes():
    return sum(x.nbytes for x in jax.live_arrays())


def resident_bytes():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def loss(params, data, prng):
    x = data["x"]
    for k in range(LAYERS):
        x = jnp.tanh(x @ params[f"w{k}"])
    return jnp.mean(x**2), {}


def configs():
    bands = (1.0, 0.5, 0.25)
    return {
        "DP-SGD": DPSGDConfig.default(
            num_examples=EXAMPLES, expected_batch_size=4, iterations=STEPS, noise_multiplier=1.0
        ),
        "BandMF": BandMFConfig(STEPS, 2.0, bands, num_examples=EXAMPLES, noise_multiplier=1.0),
    }


def run(folder, stop, mechanism="DP-SGD", megabytes=MEGABYTES):
    """A run with a state of about `megabytes` that ends at the step `stop`."""
    parts = {"DP-SGD": 3, "BandMF": 5}[mechanism]
    width = int((megabytes * 1e6 / 4 / LAYERS / parts) ** 0.5)
    draw = np.random.default_rng(0)
    params = {f"w{k}": draw.normal(size=(width, width), scale=1 / width) for k in range(LAYERS)}
    params = {name: x.astype(np.float32) for name, x in params.items()}
    data = {"x": draw.normal(size=(EXAMPLES, width)).astype(np.float32)}
    trainer = Trainer(config=configs()[mechanism], loss_fn=loss, optimizer=optax.adam(1e-3))
    options = RunOptions(
        checkpoint_every=2, compilations=1, progress=False, tensorboard=False, keep=1
    )
    with Watched() as watched:
        state = trainer.fit(
            data,
            params,
            folder=folder,
            options=options,
            callback=lambda state, metrics: metrics["step"] >= int(stop),
        )
    size = sum(x.nbytes for x in jax.tree.leaves(state))
    return {"live": watched.live / size, "peak": watched.peak / size}


def checkpoint(folder, leaves, megabytes=MEGABYTES // 2):
    """Checkpoints of a state of equal arrays. The state itself is there before."""
    size = int((megabytes * 1e6 / 4 / int(leaves)) ** 0.5)
    draw = np.random.default_rng(0)
    arrays = {
        f"w{k}": jnp.asarray(draw.normal(size=(size, size)).astype(np.float32))
        for k in range(int(leaves))
    }
    halves = StateHalves(arrays, {"step": jnp.zeros((), jnp.uint32)})
    run_folder = RunFolder(Path(folder))
    run_folder.create()
    checkpoints = Checkpoints(run_folder, keep=1)

    def save(step, halves):
        meta = CheckpointMetadata(step, 0, "plan", "key", "ledger", digest_of(halves))
        checkpoints.stage(halves, meta, {})
        checkpoints.wait()
        checkpoints.publish(step)

    save(0, jax.tree.map(lambda x: x.reshape(-1)[:1], halves))  # imports and threads
    digest_of(halves)
    with Watched() as watched:
        for step in (1, 2):
            save(step, halves)
    checkpoints.close()
    bytes_of = sum(x.nbytes for x in jax.tree.leaves(halves))
    return {"live": 1 + watched.live / bytes_of, "peak": watched.peak / bytes_of}


def measured(*arguments):
    command = [sys.executable, __file__, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def table(megabytes):
    print("| case | arrays | peak of the process |")
    print("| --- | --- | --- |")
    with tempfile.TemporaryDirectory() as root:
        for mechanism in configs():
            cases = (("fresh", STEPS), ("interrupted", STEPS // 2), ("interrupted", STEPS))
            names = ("fresh run", None, "resumed run")
            for (name, stop), label in zip(cases, names, strict=True):
                found = measured("run", Path(root) / mechanism / name, stop, mechanism, megabytes)
                if label:
                    print(f"| {label}, {mechanism} | {found['live']:.2f} | {found['peak']:.2f} |")
                time.sleep(0.1)
        for leaves in (1, 3, 12):
            found = measured("checkpoint", Path(root) / str(leaves), leaves, megabytes)
            label = f"a checkpoint of {leaves} array{'s' if leaves > 1 else ''}, above its state"
            print(f"| {label} | {found['live'] - 1:.2f} | {found['peak']:.2f} |")
    print(
        f"{platform.machine()} {jax.default_backend()}, states of {megabytes} MB, "
        f"{datetime.date.today()}, jax {jax.__version__}, orbax {ocp.__version__}, "
        f"bevel {bevel.__version__}"
    )


def main():
    if sys.argv[1:2] in (["run"], ["checkpoint"]):
        work, folder, number, *rest = sys.argv[1:]
        Path(folder).parent.mkdir(parents=True, exist_ok=True)
        extra = [int(x) if x.isdigit() else x for x in rest]
        print(json.dumps({"run": run, "checkpoint": checkpoint}[work](folder, number, *extra)))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=MEGABYTES)
    table(parser.parse_args().megabytes)


if __name__ == "__main__":
    main()
