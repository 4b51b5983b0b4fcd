"""Measures what it costs to write a checkpoint in two halves rather than in one.

The same Orbax handlers write both to the same disk, one after the other, and the median of the
ratios is reported. A checkpoint is staged, sealed and published; charging and evaluation are not
included. With BandMF, the private half holds the last noise vectors, which a run needs to resume.

python benchmarks/checkpoint.py [--repeats 15]
"""

import argparse
import datetime
import platform
import statistics
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

import bevel
from bevel.execution_plan import BandMFConfig, DPSGDConfig
from bevel.training.checkpoint import (
    Checkpoints,
    StateHalves,
    array_handler,
    by_name,
    detached,
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
        plain = ocp.AsyncCheckpointer(ocp.CompositeCheckpointHandler(released=array_handler()))

        def in_two(step):
            checkpoints.stage(
                both, CheckpointMetadata(step, 0, "plan", "key", "ledger", digest_of(both)), {}
            )
            checkpoints.wait()
            checkpoints.publish(step)

        def in_one(step):
            arrays = by_name(both)
            digest(arrays)
            saved = ocp.args.Composite(released=ocp.args.PyTreeSave(detached(arrays)))
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    print("| state | mechanism | one half | both halves | ratio | private half |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, (width, layers) in SIZES.items():
        for kind, config in (("DP-SGD", DPSGD), ("BandMF, 4 bands", BANDMF)):
            two, one, ratio, state = measure(config, width, layers, options.repeats)
            private = sum(x.nbytes for x in jax.tree.leaves(state.private))
            print(
                f"| {name} | {kind} | {one * 1e3:.1f} ms | {two * 1e3:.1f} ms | {ratio:.2f} "
                f"| {private / 1e6:.1f} MB |"
            )
    print(
        f"{platform.machine()} {jax.default_backend()}, {datetime.date.today()}, jax "
        f"{jax.__version__}, orbax {ocp.__version__}, bevel {bevel.__version__}"
    )


if __name__ == "__main__":
    main()
