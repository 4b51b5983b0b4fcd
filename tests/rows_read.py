"""Runs that record which rows each process reads."""

import dataclasses
import json

import jax
import numpy as np
import training_runs as runs

from bevel.execution_plan import PerformanceFlags, PlanSecrets
from bevel.sharding import make_mesh
from bevel.training import Augmentation, RunOptions, Trainer
from bevel.training.data import source_of

SEED = 3
USERS = np.arange(runs.N) // 3  # 16 users with 3 examples each
BY_USER = {
    "num_examples": 16,
    "expected_batch_size": 6,
    "unit": "user",
    "examples_per_user_per_batch": 2,
}


class Recorded:
    """The data of `training_runs`, with the indices of each call.

    Records are only read by steps, because the data has a fingerprint of its own.
    """

    fingerprint = "rows"

    def __init__(self):
        self.calls = []

    def __len__(self):
        return runs.N

    def __getitem__(self, index):
        return jax.tree.map(lambda column: column[index], runs.data())

    def __getitems__(self, indices):
        self.calls.append(indices)
        return [self[index] for index in indices]


def plan(flags=None, **changed):
    return runs.config(**changed).make(flags, secrets=PlanSecrets.for_tests(SEED))


def augmented(data, prng):
    return data | {"x": data["x"] + 0.1 * jax.random.normal(prng, data["x"].shape)}


CASES = {
    "padding": lambda: {"config": plan()},
    "users": lambda: {"config": plan(**BY_USER)},
    "microbatches": lambda: {"config": plan(PerformanceFlags(microbatch_size=8))},
    "views": lambda: {"config": plan(), "augmentation": Augmentation(augmented, 2)},
}


def trainer(case, mesh="data=8"):
    return runs.trainer(**CASES[case](), mesh=make_mesh(mesh))


def users_of(case):
    return USERS if case == "users" else None


def calls_of_fit(case):
    """Trains, and returns the calls in which this process has read records."""
    recorded = Recorded()
    trainer(case).fit(
        recorded,
        runs.params(),
        user_ids=users_of(case),
        options=RunOptions(checkpoint_every=4, compilations=1, progress=False, tensorboard=False),
    )
    return recorded.calls


def steps_selected(case):
    """The indices of each step, from the sampler alone."""
    made = of_trainer(trainer(case), case)
    seed = plan().secrets.sampling_seed
    every = made.sampler.batch_iterator(made.population, seed)
    return [sorted(batch[batch >= 0].tolist()) for batch in every]


def of_trainer(made: Trainer, case, source=None):
    """The batches that `fit` of this trainer reads."""
    batches = made._batches(source_of(source or Recorded()), users_of(case), 1)
    return dataclasses.replace(batches, seed=made.plan.secrets.sampling_seed)


def main(process, folder):
    found = {case: calls_of_fit(case) for case in CASES}
    with open(f"{folder}/{process}.json", "w") as file:
        json.dump(found, file)
