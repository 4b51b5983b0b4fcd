"""Accuracy on MNIST and Fashion-MNIST at the budgets of Tramer and Boneh (2021).

    python benchmarks/accuracy.py --data FOLDER              # both, three seeds, a GPU or a CPU
    python benchmarks/accuracy.py --data FOLDER --tune       # on a part of the training set

FOLDER holds `mnist.npz` and `fashion_mnist.npz` (x_train, y_train, x_test, y_test). A linear model
on fixed scattering features, from zeros, DP-SGD with momentum by a `bevel.DPSGDConfig`; what is
reported is the average of its last parameters, which costs no privacy. The options were chosen on
the last tenth of the training set (`--tune`); epsilon is that of the final run, tuning excluded.
Beside it stands the same model trained without clipping and without noise.
"""

import argparse
import datetime
import json
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import scattering

import bevel

DELTA = 1e-5
CLASSES = 10


class Task(NamedTuple):
    """A data set, its budget, and how it is trained."""

    name: str
    epsilon: float
    batch_size: int
    epochs: int
    learning_rate: float
    clip_norm: float = 0.1
    momentum: float = 0.9
    average: float = 0.9  # weight of the old parameters in their moving average

    def iterations(self, examples: int) -> int:
        return self.epochs * examples // self.batch_size


TASKS = (
    Task("mnist", 2.93, batch_size=16384, epochs=40, learning_rate=4.0),
    Task("fashion_mnist", 2.7, batch_size=16384, epochs=40, learning_rate=4.0),
)


class Data(NamedTuple):
    x: np.ndarray
    y: np.ndarray

    @classmethod
    def of(cls, file: Any, part: str) -> "Data":
        x = scattering.features(file[f"x_{part}"])
        return cls(x.reshape(len(x), -1), file[f"y_{part}"].astype(np.int32))


def logits(params: Any, x: jax.Array) -> jax.Array:
    return x @ params["w"] + params["b"]


def loss(params: Any, batch: Data) -> jax.Array:
    losses = optax.softmax_cross_entropy_with_integer_labels(logits(params, batch.x), batch.y)
    return jnp.mean(losses)


def private(task: Task, data: Data) -> tuple[Any, float]:
    """The averaged parameters of a private run with fresh secrets, and its epsilon."""
    config = bevel.DPSGDConfig.default(
        len(data.x),
        task.batch_size,
        task.iterations(len(data.x)),
        l2_clip_norm=task.clip_norm,
        normalize_by=task.batch_size * task.clip_norm,
    )
    plan = config.calibrate(epsilon=task.epsilon, delta=DELTA).make()
    noise, sizes = plan.noise_addition_transform, plan.padded_sizes()
    optimizer = optimizer_of(task, task.clip_norm)

    @jax.jit
    def step(state: Any, everything: Data, rows: jax.Array, key: jax.Array) -> Any:
        params, average, noise_state, slots = state
        batch = jax.tree.map(lambda x: x[rows], everything)
        gradients = plan.clipped_grad(loss)(params, batch, is_padding_example=rows < 0)
        noised, noise_state = noise.update(gradients, noise_state, prng_key=key)
        updates, slots = optimizer.update(noised, slots)
        params = optax.apply_updates(params, updates)
        return params, averaged(average, params, task.average), noise_state, slots

    params = start(data)
    state = params, params, noise.init(params), optimizer.init(params)
    everything = jax.device_put(data)
    for indices in plan.batches(len(data.x)):
        state = step(state, everything, sizes.pad(indices), plan.secrets.noise_key)
    return state[1], plan.epsilon(plan.iterations)


def plain(task: Task, data: Data, rng: np.random.Generator) -> Any:
    """The averaged parameters of a run without clipping and noise."""
    optimizer = optimizer_of(task, 0.1)

    @jax.jit
    def step(state: Any, everything: Data, rows: jax.Array) -> Any:
        params, average, slots = state
        gradients = jax.grad(loss)(params, jax.tree.map(lambda x: x[rows], everything))
        updates, slots = optimizer.update(gradients, slots)
        params = optax.apply_updates(params, updates)
        return params, averaged(average, params, task.average), slots

    params = start(data)
    state = params, params, optimizer.init(params)
    everything = jax.device_put(data)
    for _ in range(task.iterations(len(data.x))):
        state = step(state, everything, rng.integers(len(data.x), size=task.batch_size))
    return state[1]


def start(data: Data) -> Any:
    return {"w": jnp.zeros((data.x.shape[1], CLASSES)), "b": jnp.zeros(CLASSES)}


def optimizer_of(task: Task, scale: float) -> optax.GradientTransformation:
    return optax.sgd(task.learning_rate * scale, momentum=task.momentum)


def averaged(average: Any, params: Any, weight: float) -> Any:
    return jax.tree.map(lambda a, p: weight * a + (1 - weight) * p, average, params)


@jax.jit
def right(params: Any, data: Data) -> jax.Array:
    return jnp.mean(jnp.argmax(logits(params, data.x), axis=1) == data.y)


def run(task: Task, train: Data, test: Data, seeds: int) -> dict[str, Any]:
    accuracies, without, seconds, epsilon = [], [], [], 0.0
    for seed in range(seeds):
        begun = time.perf_counter()
        params, epsilon = private(task, train)
        accuracies.append(float(right(params, test)))
        seconds.append(time.perf_counter() - begun)
        without.append(float(right(plain(task, train, np.random.default_rng(seed)), test)))
    return {
        **task._asdict(),
        "delta": DELTA,
        "spent": epsilon,
        "accuracies": accuracies,
        "accuracy": statistics.median(accuracies),
        "without_privacy": statistics.median(without),
        "seconds": statistics.median(seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--json", type=Path, default=Path("build/accuracy.json"))
    options = parser.parse_args()
    machine = f"{jax.devices()[0].device_kind} ({platform.machine()})"
    versions = f"jax {jax.__version__}, bevel {bevel.__version__}"
    print("| data | epsilon | accuracy | each | without privacy | seconds |\n|" + " --- |" * 6)
    rows = []
    for task in TASKS:
        with np.load(options.data / f"{task.name}.npz") as file:
            train, test = Data.of(file, "train"), Data.of(file, "test")
        if options.tune:
            cut = len(train.x) * 9 // 10
            train, test = Data(*(x[:cut] for x in train)), Data(*(x[cut:] for x in train))
        row = run(task, train, test, options.seeds)
        each = ", ".join(f"{a:.2%}" for a in row["accuracies"])
        print(
            f"| {task.name} | {row['spent']:.3f} | {row['accuracy']:.2%} | {each} | "
            f"{row['without_privacy']:.2%} | {row['seconds']:.1f} |",
            flush=True,
        )
        rows.append(row)
    date = str(datetime.date.today())
    print(f"\n{machine}, {date}, {versions}, delta {DELTA}")
    options.json.parent.mkdir(parents=True, exist_ok=True)
    report = {"machine": machine, "date": date, "versions": versions, "rows": rows}
    options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
