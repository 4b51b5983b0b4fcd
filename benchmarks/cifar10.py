"""CIFAR-10: makes the data of `cifar10.toml` and `cifar10_features.toml`, and reports their runs.

    python benchmarks/cifar10.py prepare FOLDER/cifar10_jpeg.npz build/cifar10.npz
    bevel train benchmarks/cifar10.toml --plan.epsilon=8
    python benchmarks/cifar10.py speed benchmarks/cifar10.toml

    python benchmarks/cifar10.py features build/cifar10.npz build/cifar10_features.npz
    bevel train benchmarks/cifar10_features.toml

    python benchmarks/cifar10.py table runs/cifar10 runs/cifar10_features

The images are the official split of CIFAR-10, stored as JPEGs of quality 75, so they are not
exactly the original ones. `features` transforms each image by fixed features that come from no data
(`patch_features.py`). `speed` times, on one batch: the clipped gradient alone; per-example
gradients by `vmap(grad)`, clipped and summed as in JAX Privacy; and the training loop with all of
it: reading, augmentation, clipping, noise, update and checkpoints. `table` prints a row for each
run folder: what was spent, and the test accuracy of the final averaged parameters.
"""

import argparse
import dataclasses
import datetime
import io
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import bevel
from bevel.accounting.rounding import shown_epsilon
from bevel.cli.config import read_config
from bevel.cli.job import Job
from bevel.training.contribution import contribution
from bevel.training.loop import loss_key_data
from bevel.training.state import split

REPEATS = 5
PATCHES = 800  # of the fixed features
LENGTH = 8.0  # of a feature vector, so that its gradient is longer than that of the bias
VERSIONS = f"jax {jax.__version__}, bevel {bevel.__version__}"


def decoded(files: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The images of JPEG files that are stored one after another."""
    from PIL import Image

    parts = np.split(files, ends[:-1])
    return np.stack([np.asarray(Image.open(io.BytesIO(part.tobytes()))) for part in parts])


def prepare(source: Path, target: Path) -> None:
    """Writes an .npz file with uint8 images, which `bevel train` reads."""
    arrays = {}
    with np.load(source) as file:
        for part in ("train", "test"):
            arrays[f"x_{part}"] = decoded(file[f"jpeg_{part}"], file[f"ends_{part}"])
            arrays[f"y_{part}"] = file[f"y_{part}"].astype(np.int32)
    target.parent.mkdir(parents=True, exist_ok=True)
    np.savez(target, **arrays)
    print({name: (x.shape, str(x.dtype)) for name, x in arrays.items()})


def write_features(source: Path, target: Path) -> None:
    """Writes the features of all images and the labels, which `bevel train` reads."""
    from patch_features import PatchFeatures

    begun = time.perf_counter()
    with np.load(source) as file:
        arrays = {name: file[name] for name in ("x_train", "y_train", "x_test", "y_test")}
    size, _, channels = arrays["x_train"].shape[1:]
    transform = PatchFeatures.of(size, channels, PATCHES, stride=2, grid=2, mirror=True)
    for name in ("x_train", "x_test"):
        arrays[name] = LENGTH * transform(arrays[name])
    np.savez(target, **arrays)
    print(f"{arrays['x_train'].shape[1]} features, {time.perf_counter() - begun:.0f} seconds")


def table(folders: list[Path]) -> None:
    """Prints one row of Markdown for each finished run."""
    print("| run | epsilon | delta | steps | test accuracy |\n|" + " --- |" * 5)
    for folder in folders:
        run = json.loads((folder / "released/run.json").read_text())
        last = json.loads((folder / "released/metrics.jsonl").read_text().splitlines()[-1])
        print(
            f"| {run['name']} | {shown_epsilon(last['epsilon'])} | {last['delta']:g} | "
            f"{last['step']} | {last['test_accuracy']:.2%} |"
        )
    print(f"\n{jax.devices()[0].device_kind}, {datetime.date.today()}, {VERSIONS}")


def seconds_of(call: Callable[[], Any]) -> float:
    """The median time of a call, after a first one that compiles."""
    jax.block_until_ready(call())
    times = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def speed(config: Any, steps: int, parts: list[str]) -> dict[str, Any]:
    """Seconds of a step and of its parts."""
    config = dataclasses.replace(config, plan=dataclasses.replace(config.plan, steps=steps))
    job = Job(config)
    trainer = job.trainer
    size = round(config.plan.batch_size)
    batch = jax.device_put(job.data.train.read(np.arange(size)))
    params = job.init()
    state = trainer.init(params)
    is_padding, key = jnp.zeros(size, bool), jax.random.wrap_key_data(loss_key_data(0))
    clip = jax.jit(lambda state: trainer.step.clip(state, (batch, None), is_padding, key)[0])
    times = {"clipped gradient": seconds_of(lambda: clip(state))}
    if "naive" in parts:
        sums = jax.jit(lambda params: naive_sum(job, params, batch, key))
        times["vmap(grad)"] = seconds_of(lambda: sums(params))
    if "loop" not in parts:
        return {"seconds": times, "examples": size}
    begun: list[float] = []

    def clock(*_: Any) -> None:
        begun.append(time.perf_counter())

    options = job.run_options()
    trainer.fit(job.data.train, params, callback=clock, options=options)
    spans = np.diff(begun)
    times["training loop"] = float(np.median(spans)) / options.checkpoint_every
    return {"seconds": times, "examples": size}


def naive_sum(job: Job, params: Any, batch: Any, key: jax.Array) -> Any:
    """The clipped sum by per-example gradients, in the microbatches of the config."""
    trainer, plan = job.trainer, job.plan
    loss = contribution(trainer.loss_fn, False, trainer.augmentation)
    params, frozen = split(params, trainer.step.trainable)
    clip_norm = job.config.plan.clip_norm

    def one(example: Any, key: jax.Array) -> Any:
        rows = jax.tree.map(lambda x: x[None], example)
        gradient = jax.grad(lambda p: loss(p, (frozen, None), (rows, None), key)[0])(params)
        norm = optax.global_norm(gradient)
        return jax.tree.map(lambda g: g * jnp.minimum(1.0, clip_norm / norm), gradient)

    def chunk(total: Any, rows: Any) -> tuple[Any, None]:
        clipped = jax.vmap(one)(*rows)
        return jax.tree.map(lambda t, g: t + g.sum(0), total, clipped), None

    count = len(batch["y"])
    size = plan.flags.microbatch_size or count
    rows = (batch, jax.random.split(key, count))
    rows = jax.tree.map(lambda x: x.reshape(-1, size, *x.shape[1:]), rows)
    return jax.lax.scan(chunk, jax.tree.map(jnp.zeros_like, params), rows)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("prepare", "features"):
        writing = commands.add_parser(name)
        writing.add_argument("source", type=Path)
        writing.add_argument("target", type=Path)
    tabling = commands.add_parser("table")
    tabling.add_argument("folders", type=Path, nargs="+")
    measuring = commands.add_parser("speed")
    measuring.add_argument("config", type=Path)
    measuring.add_argument("--steps", type=int, default=40)
    measuring.add_argument("--views", type=int)
    measuring.add_argument("--microbatch-size", type=int)
    measuring.add_argument("--parts", default="clip,naive,loop", help="what to time")
    options = parser.parse_args()
    match options.command:
        case "prepare":
            return prepare(options.source, options.target)
        case "features":
            return write_features(options.source, options.target)
        case "table":
            return table(options.folders)
    config = read_config(options.config)
    run = dataclasses.replace(config.run, checkpoint_every=10)
    if options.microbatch_size:
        run = dataclasses.replace(run, microbatch_size=options.microbatch_size)
    views = config.augmentation
    if options.views:
        views = dataclasses.replace(views, views=options.views)
    config = dataclasses.replace(config, run=run, augmentation=views)
    found = speed(config, options.steps, options.parts.split(","))
    found |= {
        "views": views.views,
        "microbatch_size": run.microbatch_size,
        "device": jax.devices()[0].device_kind,
        "date": str(datetime.date.today()),
        "versions": VERSIONS,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
