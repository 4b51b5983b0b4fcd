"""Builds the data, model, plan, mesh and trainer of a config."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import optax

from bevel import sharding
from bevel.accounting import Budget
from bevel.cli.config import Config, OptimizerTable
from bevel.cli.plan_config import plan_for
from bevel.datasets import DataSet, augmentation_of, data_set
from bevel.errors import FixArgumentsError
from bevel.execution_plan import DPExecutionPlan, PerformanceFlags, PlanSecrets
from bevel.models import BuiltModel, Evaluation, build
from bevel.models.model_checks import example_types as example_types
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
    def model(self) -> BuiltModel:
        return build(self.config.model, self.data.spec)

    @functools.cached_property
    def plan(self) -> DPExecutionPlan:
        config = plan_for(self.config.plan, self.data)
        seed = self.config.run.test_seed
        return config.make(
            PerformanceFlags(microbatch_size=self.config.run.microbatch_size),
            secrets=None if seed is None else PlanSecrets.for_tests(seed),
        )

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
            augmentation=augmentation_of(self.config.augmentation, self.data.spec),
            ema_decay=self.config.optimizer.ema_decay,
        )

    def init(self) -> PyTree:
        """The initial parameters. What is read and never trained is `model.model_state`."""
        return self.model.init()

    def evaluate(self, params: PyTree) -> dict[str, float]:
        """Metrics of the test set, which is never trained on."""
        return self._evaluation(params)

    @functools.cached_property
    def _evaluation(self) -> Evaluation:
        return Evaluation(self.model.predict, self.data.spec, self.data.test, self.mesh)

    def final_metrics(self, state: TrainingState) -> dict[str, float]:
        """Test metrics of the final parameters, or of their moving average if there is one."""
        return self.evaluate(self.trainer.released(state).evaluated)

    def final_accuracy(self, state: TrainingState) -> float:
        """The test accuracy of `final_metrics`, for data with classes."""
        return self.final_metrics(state)["test_accuracy"]

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
            tuning=run.tuning,
            settings=self.settings(),
            compilations=run.compilations,
            budget=self._ledger_budget(),
            delta=None if self.plan.budget else self.config.plan.delta,
            **options,
        )

    def _ledger_budget(self) -> Budget | None:
        """What all runs of the ledger may spend. None: the budget of this run."""
        epsilon, delta = self.config.run.ledger_epsilon, self.config.plan.delta
        if epsilon is None:
            return None
        if delta is None:
            raise FixArgumentsError("[run] has ledger_epsilon, but [plan] has no delta: set delta.")
        return Budget(epsilon, delta)

    def fit(self, *, folder: str | Path | None = None, **options: Any) -> TrainingState:
        """Trains in a run folder, or without one, in which case nothing is saved."""
        return self.trainer.fit(
            self.data.train,
            self.init(),
            model_state=self.model.model_state,
            folder=folder,
            evaluate=self.evaluate,
            user_ids=self.data.user_ids if self.plan.unit.name == "user" else None,
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
