"""A job builds the trainer, plan and optimizer that its config describes."""

import dataclasses

import jax
import numpy as np
import optax
import pytest

from bevel.accounting import Budget
from bevel.cli.config import OptimizerTable, read_config
from bevel.cli.job import Job, optimizer, use_cpu_devices
from bevel.errors import FixArgumentsError
from bevel.optimizers import AugmentedGradientTransformation


@pytest.fixture(name="job")
def fixture_job(config_file):
    return Job(read_config(config_file))


def test_the_trainer_is_that_of_the_config(job):
    assert dict(job.trainer.mesh.shape) == {"data": 4, "model": 2}
    assert job.trainer.ema_decay == 0.9
    assert job.plan.iterations == 4
    assert not job.plan.secrets.known


def test_microbatches_and_views_of_the_config(job):
    assert job.plan.flags.microbatch_size is None
    assert job.trainer.augmentation is None
    run = dataclasses.replace(job.config.run, microbatch_size=8)
    assert Job(dataclasses.replace(job.config, run=run)).plan.flags.microbatch_size == 8
    views = dataclasses.replace(job.config.augmentation, views=2, flip=True)
    with pytest.raises(FixArgumentsError, match="of kind table: remove the table"):
        _ = Job(dataclasses.replace(job.config, augmentation=views)).trainer


def test_runs_of_one_ledger_have_a_budget_together(job):
    assert job.run_options().budget is None
    run = dataclasses.replace(job.config.run, ledger_epsilon=8.0)
    shared = Job(dataclasses.replace(job.config, run=run))
    assert shared.run_options().budget == Budget(8.0, job.config.plan.delta)


def test_accuracy_is_that_of_the_test_set(job):
    params = {"dense": [], "out": {"w": np.ones((4, 2)), "b": np.array([0.0, 1.0])}}
    params = jax.tree.map(lambda x: np.asarray(x, np.float32), params)
    share = float(np.mean(job.data.test.read(np.arange(32))["y"] == 1))
    assert job.evaluate(params)["test_accuracy"] == pytest.approx(share)


def test_a_seed_is_for_tests_and_marked_as_such(job):
    run = dataclasses.replace(job.config.run, test_seed=3)
    known = Job(dataclasses.replace(job.config, run=run)).plan.secrets
    assert known.known


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
@pytest.mark.parametrize("warmup_steps", [0, 2])
def test_learning_rates(schedule, warmup_steps):
    made = optimizer(
        OptimizerTable(momentum=0, learning_rate=0.5, schedule=schedule, warmup_steps=warmup_steps),
        10,
    )
    grads = {"w": jax.numpy.ones(2)}
    state = made.init(grads)
    rates = []
    for _ in range(10):
        with jax.numpy_dtype_promotion("standard"):  # optax's cosine mixes ints and floats
            updates, state = made.update(grads, state, grads)
        rates.append(-float(updates["w"][0]))
    assert max(rates) == pytest.approx(0.5)
    assert rates[0] == pytest.approx(0.0 if warmup_steps else 0.5)
    assert (rates[-1] < 0.1) == (schedule == "cosine")


def test_optimizers_by_name(job):
    assert isinstance(optimizer(OptimizerTable("adam"), 10), optax.GradientTransformation)
    made = optimizer(OptimizerTable("dp_adam", learning_rate=1e-3), 10)(job.plan)
    assert isinstance(made, AugmentedGradientTransformation | optax.GradientTransformation)
    with pytest.raises(FixArgumentsError, match="warmup_steps is 10, but there are only 10"):
        optimizer(OptimizerTable(warmup_steps=10), 10)


def test_devices_that_jax_does_not_have():
    use_cpu_devices(8)
    with pytest.raises(FixArgumentsError, match="already runs with 8 cpu devices"):
        use_cpu_devices(64)
