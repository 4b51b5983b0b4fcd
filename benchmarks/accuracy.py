"""Accuracy on MNIST and Fashion-MNIST at the budgets of Tramer and Boneh (2021).

    python benchmarks/accuracy.py --data FOLDER              # both data sets, three seeds
    python benchmarks/accuracy.py --data FOLDER --tune       # on a part of the training set

FOLDER contains `mnist.npz` and `fashion_mnist.npz` (x_train, y_train, x_test, y_test). The model is
linear on fixed scattering features, starts from zeros, and is trained by a `bevel.DPSGDConfig` with
momentum. The accuracy is that of a moving average of its parameters, which costs no privacy. The
options were tuned on the last tenth of the training set (`--tune`); epsilon covers the final run,
not the tuning. For comparison, the same model is trained without clipping and without noise.
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
    """A data set, its privacy budget, and its training options."""

    name: str
    epsilon: float
    batch_size: int
    epochs: int
    learning_rate: float
    clip_norm: float = 0.1
    momentum: float = 0.9
    average: float = 0.9  # decay of the moving average of the parameters

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
    def step(state: Any, all_data: Data, rows: jax.Array, key: jax.Array) -> Any:
        params, average, noise_state, opt_state = state
        batch = jax.tree.map(lambda x: x[rows], all_data)
        gradients = plan.clipped_grad(loss)(params, batch, is_padding_example=rows < 0)
        noised, noise_state = noise.update(gradients, noise_state, prng_key=key)
        updates, opt_state = optimizer.update(noised, opt_state)
        params = optax.apply_updates(params, updates)
        return params, averaged(average, params, task.average), noise_state, opt_state

    params = initial_params(data)
    state = params, params, noise.init(params), optimizer.init(params)
    all_data = jax.device_put(data)
    for indices in plan.batches(len(data.x)):
        state = step(state, all_data, sizes.pad(indices), plan.secrets.noise_key)
    return state[1], plan.epsilon(plan.iterations)


def plain(task: Task, data: Data, rng: np.random.Generator) -> Any:
    """The averaged parameters of a run without clipping and noise."""
    optimizer = optimizer_of(task, 0.1)

    @jax.jit
    def step(state: Any, all_data: Data, rows: jax.Array) -> Any:
        params, average, opt_state = state
        gradients = jax.grad(loss)(params, jax.tree.map(lambda x: x[rows], all_data))
        updates, opt_state = optimizer.update(gradients, opt_state)
        params = optax.apply_updates(params, updates)
        return params, averaged(average, params, task.average), opt_state

    params = initial_params(data)
    state = params, params, optimizer.init(params)
    all_data = jax.device_put(data)
    for _ in range(task.iterations(len(data.x))):
        state = step(state, all_data, rng.integers(len(data.x), size=task.batch_size))
    return state[1]


def initial_params(data: Data) -> Any:
    return {"w": jnp.zeros((data.x.shape[1], CLASSES)), "b": jnp.zeros(CLASSES)}


def optimizer_of(task: Task, scale: float) -> optax.GradientTransformation:
    return optax.sgd(task.learning_rate * scale, momentum=task.momentum)


def averaged(average: Any, params: Any, weight: float) -> Any:
    return jax.tree.map(lambda a, p: weight * a + (1 - weight) * p, average, params)


@jax.jit
def accuracy(params: Any, data: Data) -> jax.Array:
    return jnp.mean(jnp.argmax(logits(params, data.x), axis=1) == data.y)


def run(task: Task, train: Data, test: Data, seeds: int) -> dict[str, Any]:
    accuracies, baselines, seconds, epsilon = [], [], [], 0.0
    for seed in range(seeds):
        started = time.perf_counter()
        params, epsilon = private(task, train)
        accuracies.append(float(accuracy(params, test)))
        seconds.append(time.perf_counter() - started)
        baselines.append(float(accuracy(plain(task, train, np.random.default_rng(seed)), test)))
    return {
        **task._asdict(),
        "delta": DELTA,
        "spent": epsilon,
        "accuracies": accuracies,
        "accuracy": statistics.median(accuracies),
        "without_privacy": statistics.median(baselines),
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
