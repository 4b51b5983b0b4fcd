"""From a config to what it stands for: data, model, plan, mesh, and the trainer that joins them."""

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
from bevel.cli.data_sets import DataSet, data_set
from bevel.cli.models import Model, model
from bevel.cli.plans import plan_config
from bevel.errors import FixArgumentsError
from bevel.execution_plan import DPExecutionPlan, PlanSecrets
from bevel.optimizers import dp_adam
from bevel.training import RunOptions, Trainer, TrainingState

PyTree = Any


@dataclasses.dataclass(frozen=True)
class Job:
    """A config, and all that follows from it, made when it is first asked for."""

    config: Config
    given_mesh: Any = None

    @functools.cached_property
    def data(self) -> DataSet:
        return data_set(self.config.data)

    @functools.cached_property
    def model(self) -> Model:
        return model(self.config.model, self.data.shape, self.data.classes)

    @functools.cached_property
    def plan(self) -> DPExecutionPlan:
        config = plan_config(self.config.plan, len(self.data.x_train))
        seed = self.config.run.test_seed
        return config.make(secrets=None if seed is None else PlanSecrets.for_tests(seed))

    @functools.cached_property
    def mesh(self) -> jax.sharding.Mesh:
        return self.given_mesh or sharding.make_mesh(self.config.mesh.axes or "data=-1")

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
        """The parameters to begin with."""
        return self.model.init(jax.random.key(self.config.model.init_seed))

    def evaluate(self, params: PyTree) -> dict[str, float]:
        """Accuracy on the test set, which nothing is trained on."""
        return {"test_accuracy": float(self._accuracy(params))}

    def final_accuracy(self, state: TrainingState) -> float:
        """That of the parameters a run ended with, or of their average."""
        return self.evaluate(self.trainer.released(state).evaluated)["test_accuracy"]

    @functools.cached_property
    def _accuracy(self) -> Callable[[PyTree], jax.Array]:
        x, y = self.data.x_test, self.data.y_test
        everywhere = jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec())

        @jax.jit
        def accuracy(params: PyTree) -> jax.Array:
            # Whole: the test set is not cut, and the compiler would cut and join its activations.
            params = jax.lax.with_sharding_constraint(params, everywhere)
            right = self.model.predict(params, jnp.asarray(x)).argmax(-1) == y
            return right.astype(jnp.float32).mean()

        return accuracy

    def settings(self) -> dict[str, Any]:
        """What a run records of its config: all but where it is kept."""
        tables = dataclasses.asdict(self.config)
        return {name: table for name, table in tables.items() if name != "run"}

    def fit(self, *, folder: str | Path | None = None, **options: Any) -> TrainingState:
        """Trains: in a folder, or, for comparison, without leaving anything behind."""
        run, budget = self.config.run, self.plan.budget
        kept = RunOptions(
            checkpoint_every=run.checkpoint_every,
            keep=run.keep,
            ledger=run.ledger,
            anchor=run.anchor,
            accept=run.accept,
            settings=self.settings(),
            compilations=run.compilations,
            delta=None if budget else self.config.plan.delta,
            **options,
        )
        records = {"x": self.data.x_train, "y": self.data.y_train}
        return self.trainer.fit(
            records, self.init(), folder=folder, evaluate=self.evaluate, options=kept
        )


def optimizer(given: OptimizerTable, steps: int) -> Any:
    """Of optax; for dp_adam a function of the plan, whose noise it corrects for."""
    if given.warmup_steps >= steps:
        raise FixArgumentsError(
            f"warmup_steps={given.warmup_steps} of {steps} steps: give fewer than all of them."
        )
    rate: Any = given.learning_rate
    if given.schedule == "cosine":
        rate = optax.warmup_cosine_decay_schedule(
            0.0 if given.warmup_steps else rate, rate, given.warmup_steps, steps
        )
    elif given.warmup_steps:
        rate = optax.linear_schedule(0.0, rate, given.warmup_steps)
    match given.name:
        case "sgd":
            return optax.sgd(rate, momentum=given.momentum or None)
        case "adam":
            return optax.adam(rate)
        case "dp_adam":
            return lambda plan: dp_adam(
                rate, noise_stddev=plan.noise_stddev, row_norms=plan.noise_row_norms()
            )
    raise FixArgumentsError(f"optimizer {given.name!r}: write sgd, adam or dp_adam.")


def use_cpu_devices(count: int) -> None:
    """Makes JAX use so many virtual CPU devices: before anything else uses a device."""
    try:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:  # JAX has its devices already; they may do
        pass
    found = jax.devices()
    if len(found) < count or found[0].platform != "cpu":
        raise FixArgumentsError(
            f"cpu_devices={count}, and JAX already runs with {len(found)} {found[0].platform} "
            "devices: start a process that has used none."
        )


def example_types(data: DataSet, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
    """A batch of so many rows, as types."""
    return {
        "x": jax.ShapeDtypeStruct((rows, *data.shape), np.float32),
        "y": jax.ShapeDtypeStruct((rows,), np.int32),
    }
