"""What a run releases can be rebuilt from its noised sums and public settings alone."""

import json
import os
import re
import time
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import simulator
import training_runs as runs
from two_processes import launched

from bevel.execution_plan import AdaptiveClipping, PlanSecrets
from bevel.optimizers import dp_adam, scale_then_privatize
from bevel.sharding import make_mesh
from bevel.training.checkpoint import Checkpoints
from bevel.training.process_agreement import barrier

USERS = np.arange(runs.N) // 4
BY_USER = runs.config(
    num_examples=12, expected_batch_size=4, unit="user", examples_per_user_per_batch=2
)
ADAPTIVE = runs.config(adaptive_clipping=AdaptiveClipping())
CASES = {
    "DP-SGD": {},
    "BandMF": {"config": runs.BANDMF},
    "BLT": {"config": runs.BLT},
    "adaptive clipping": {"config": ADAPTIVE},
    "adaptive clipping of users": {"config": BY_USER},
    "EMA and dp_adam": {
        "ema_decay": 0.9,
        "optimizer": lambda plan: dp_adam(0.1, noise_stddev=plan.noise_stddev),
    },
    "scale_then_privatize": {"optimizer": scale_then_privatize(optax.adam(0.1))},
    "a mesh": {"mesh": "data=4,model=2", "rules": "fsdp", "config": runs.BANDMF},
}


def mean_square(params):
    """An evaluation that needs no data."""
    return {"mean_square": float(sum(jnp.mean(x * x) for x in jax.tree.leaves(params)))}


def trainer(kind, seed, config=None, mesh=None, **changed):
    plan = (config or runs.config()).make(secrets=PlanSecrets.for_tests(seed))
    mesh = mesh and make_mesh(mesh)
    fields = {"loss_fn": runs.loss, "optimizer": optax.sgd(0.5, momentum=0.9)}
    return kind(config=plan, mesh=mesh, **fields | changed)


def fit(folder, of, **changed):
    users = {"user_ids": USERS} if of.plan.unit.name == "user" else {}
    options = runs.options(delta=1e-5, tensorboard=True)
    fields = {"evaluate": mean_square, "options": options} | users
    return runs.fit(folder, of=of, **fields | changed)


def check_rebuilt(folder, simulation, of):
    """Simulates a run from its noised sums, and compares everything that is released."""
    barrier("test: the run is closed")  # other processes return from fit before the first does
    replaying = simulator.simulated(of, simulator.recorded_sums(folder))
    record = json.loads((folder / "released" / "run.json").read_text())
    nothing = jax.tree.map(np.zeros_like, runs.data())
    with (
        simulator.commitments_of(folder),
        # The compiled step of the simulator has different collectives.
        mock.patch("bevel.training.run_description.collectives", lambda *_: record["collectives"]),
    ):
        fit(simulation, of=replaying, given=nothing)
    barrier("test: the simulation is closed")
    found, expected = (simulator.files_of(f / "released") for f in (folder, simulation))
    assert found == expected
    assert {modified for _, modified in found.values()} == {315_532_800}
    assert len([name for name in found if name.startswith("checkpoints/")]) > 30


@pytest.mark.parametrize("case", CASES)
def test_what_is_released_is_rebuilt_without_data_and_keys(case, tmp_path):
    folder, simulation = tmp_path / "run", tmp_path / "simulated" / "run"
    # optax.adam multiplies a float with an integer.
    with jax.numpy_dtype_promotion("standard"):
        fit(folder, of=trainer(simulator.Recording, 3, **CASES[case]))
        check_rebuilt(folder, simulation, trainer(simulator.Recording, 9, **CASES[case]))


@pytest.mark.parametrize("moment", ["before the charge", "before the publication", "half of it"])
def test_releases_of_a_crashed_run_are_rebuilt(moment, tmp_path):
    folder, made = tmp_path / "run", trainer(simulator.Recording, 3, config=runs.BANDMF)
    original, rename = Checkpoints.publish, os.rename

    def cut_short(self, step):
        if step == 6:
            if moment == "half of it":
                staged = self._staging / "6" / "private"
                rename(staged, self._private / "6")
            raise RuntimeError("power cut")
        original(self, step)

    broken = {"target": "bevel.training.checkpoint.Checkpoints.publish", "new": cut_short}
    if moment == "before the charge":
        charge = mock.Mock(side_effect=RuntimeError("power cut"))
        broken = {"target": "bevel.training.run_ledger.RunLedger.release", "new": charge}
    with mock.patch(**broken), pytest.raises(RuntimeError, match="power cut"):
        fit(folder, of=made)
    fit(folder, of=made)
    check_rebuilt(
        folder, tmp_path / "simulated" / "run", trainer(simulator.Recording, 9, config=runs.BANDMF)
    )


PROGRAM = """
import sys, pathlib, jax
import numpy as np
import simulator, training_runs as runs
sys.path.insert(0, str(pathlib.Path(runs.__file__).parent / "training"))
import test_released as tests

folder, simulation = map(pathlib.Path, sys.argv[3:])
fields = {"mesh": "data=4,model=2", "rules": "fsdp", "config": runs.BANDMF}
tests.fit(folder, of=tests.trainer(simulator.Recording, 3, **fields))
tests.check_rebuilt(folder, simulation, tests.trainer(simulator.Recording, 9, **fields))
"""


@pytest.mark.full
def test_what_two_processes_release_is_rebuilt(tmp_path):
    launched(PROGRAM, tmp_path / "run", tmp_path / "simulated" / "run")


def test_the_noise_that_was_added_is_in_no_released_file(tmp_path):
    """BandMF keeps the last noise vectors, which must only be in the private half."""
    folder = tmp_path / "run"
    state = fit(folder, of=trainer(runs.Trainer, 3, config=runs.BANDMF))
    rings = [x for x in jax.tree.leaves(state.noise_state) if x.ndim]
    needles = [np.asarray(row).tobytes()[:16] for ring in rings for row in ring if np.any(row)]
    assert needles
    uncompressed = {
        half: b"".join(
            simulator.decoded(path) for path in sorted((folder / half).rglob("*")) if path.is_file()
        )
        for half in ("released", "private")
    }
    assert not any(needle in uncompressed["released"] for needle in needles)
    assert any(needle in uncompressed["private"] for needle in needles)


def test_no_time_is_released(tmp_path):
    folder = tmp_path / "run"
    fit(folder, of=trainer(runs.Trainer, 3))
    today = str(int(time.time()))[:5].encode()
    times = re.compile(rb"20[0-9]{2}-[01][0-9]-[0-3][0-9]|second|[^.0-9]" + today)
    for path in (folder / "released").rglob("*"):
        if path.is_file():
            assert not times.search(path.read_bytes()), path
    assert not [p for p in (folder / "released").rglob("*") if "tensorboard" in p.name]
    assert list((folder / "private" / "tensorboard").rglob("events*"))
