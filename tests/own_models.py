"""A small run of a model that is in a file of its own."""

import contextlib

import jax

from bevel.cli.config import Config, MeshTable, PlanTable, RunTable
from bevel.cli.job import Job
from bevel.models import ModelTable

PLAN = PlanTable(batch_size=8, steps=2, noise_multiplier=1.0, delta=1e-3)


@contextlib.contextmanager
def promotion():
    """Users' files run with JAX's own settings, which the other tests forbid."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def job_of(data, path, code, function="build", **table):
    """A job of two steps with the model of this code."""
    path.write_text(code)
    config = Config(
        plan=PLAN,
        model=ModelTable(module=f"{path}:{function}", **table),
        mesh=MeshTable("data=8"),
        run=RunTable(test_seed=0),
    )
    job = Job(config)
    vars(job)["data"] = data
    return job
