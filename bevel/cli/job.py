"""Builds the data, model, plan, mesh and trainer of a config."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bevel import sharding
from bevel.cli.config import Config, OptimizerTable
from bevel.cli.plan_config import plan_config
from bevel.datasets import DataSet, DataSpec, data_set
from bevel.errors import FixArgumentsError
from bevel.execution_plan import DPExecutionPlan, PlanSecrets
from bevel.models import Model, build
from bevel.optimizers import dp_adam
from bevel.training import RunOptions, Trainer, TrainingState

PyTree = Any


@dataclasses.dataclass(frozen=True)
class Job:
    """A config and the objects it describes, each built on first use."""

    config: Config
    mesh_override: jax.sharding.Mesh | None = None

    @functools.cached_property
    def data(self) -> DataSet:
        return data_set(self.config.data)

    @functools.cached_property
    def model(self) -> Model:
        return build(self.config.model, self.data.spec)

    @functools.cached_property
    def plan(self) -> DPExecutionPlan:
        config = plan_config(self.config.plan, len(self.data.train))
        seed = self.config.run.test_seed
        return config.make(secrets=None if seed is None else PlanSecrets.for_tests(seed))

    @functools.cached_property
    def mesh(self) -> jax.sharding.Mesh:
        return self.mesh_override or sharding.make_mesh(self.config.mesh.axes or "data=-1")

    @functools.cached_property
    def trainer(self) -> Trainer:
        return Trainer(
            config=self.plan,
            loss_fn=self.model.loss_fn,
            optimizer=optimizer(self.config.optimizer, self.config.plan.steps),
            mesh=self.mesh,
            rules=self.config.mesh.rules,
            ema_decay=self.config.optimizer.ema_decay,
        )

    def init(self) -> PyTree:
        return self.model.init(jax.random.key(self.config.model.init_seed))

    def evaluate(self, params: PyTree) -> dict[str, float]:
        """Accuracy on the test set, which is never trained on."""
        return {"test_accuracy": float(self._accuracy(params))}

    def final_accuracy(self, state: TrainingState) -> float:
        """Test accuracy of the final parameters, or of their moving average if there is one."""
        return self.evaluate(self.trainer.released(state).evaluated)["test_accuracy"]

    @functools.cached_property
    def _accuracy(self) -> Callable[[PyTree], jax.Array]:
        test = self.data.test.read(np.arange(len(self.data.test)))
        x, y = test["x"], test["y"]
        replicated = jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec())

        @jax.jit
        def accuracy(params: PyTree) -> jax.Array:
            # The test set is not sharded. Sharded parameters would only add communication.
            params = jax.lax.with_sharding_constraint(params, replicated)
            correct = self.model.predict(params, jnp.asarray(x)).argmax(-1) == y
            return correct.astype(jnp.float32).mean()

        return accuracy

    def settings(self) -> dict[str, Any]:
        """What a run records of its config: every table except [run]."""
        tables = dataclasses.asdict(self.config)
        return {name: table for name, table in tables.items() if name != "run"}

    def run_options(self, **options: Any) -> RunOptions:
        run = self.config.run
        return RunOptions(
            checkpoint_every=run.checkpoint_every,
            keep=run.keep,
            ledger=run.ledger,
            anchor=run.anchor,
            accept=run.accept,
            settings=self.settings(),
            compilations=run.compilations,
            delta=None if self.plan.budget else self.config.plan.delta,
            **options,
        )

    def fit(self, *, folder: str | Path | None = None, **options: Any) -> TrainingState:
        """Trains in a run folder, or without one, in which case nothing is saved."""
        return self.trainer.fit(
            self.data.train,
            self.init(),
            folder=folder,
            evaluate=self.evaluate,
            user_ids=self.data.user_ids,
            options=self.run_options(**options),
        )


def optimizer(table: OptimizerTable, steps: int) -> Any:
    """The optimizer of a config. For dp_adam, a function of the plan, which knows the noise."""
    if table.warmup_steps >= steps:
        raise FixArgumentsError(
            f"[optimizer] warmup_steps is {table.warmup_steps}, but there are only {steps} steps: "
            "use fewer warm-up steps."
        )
    rate: Any = table.learning_rate
    if table.schedule == "cosine":
        rate = optax.warmup_cosine_decay_schedule(
            0.0 if table.warmup_steps else rate, rate, table.warmup_steps, steps
        )
    elif table.warmup_steps:
        rate = optax.linear_schedule(0.0, rate, table.warmup_steps)
    match table.name:
        case "sgd":
            return optax.sgd(rate, momentum=table.momentum or None)
        case "adam":
            return optax.adam(rate)
        case "dp_adam":
            return lambda plan: dp_adam(
                rate, noise_stddev=plan.noise_stddev, row_norms=plan.noise_row_norms()
            )


def use_cpu_devices(count: int) -> None:
    """Makes JAX use `count` virtual CPU devices. Call it before anything uses a device."""
    try:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:  # JAX is already initialised; it may have enough devices
        pass
    devices = jax.devices()
    if len(devices) < count or devices[0].platform != "cpu":
        raise FixArgumentsError(
            f"[mesh] cpu_devices is {count}, but JAX already runs with {len(devices)} "
            f"{devices[0].platform} devices: start a new process."
        )


def example_types(data: DataSpec, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
    """The types of a batch of this many records."""
    return {
        "x": jax.ShapeDtypeStruct((rows, *data.shape), np.dtype(data.dtype)),
        "y": jax.ShapeDtypeStruct((rows,), np.float32 if data.classes is None else np.int32),
    }
