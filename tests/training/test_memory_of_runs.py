"""What a run keeps in memory: one state, and one copy on the host while a checkpoint is written."""

import gc
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import training_runs as runs

from bevel.sharding import make_mesh
from bevel.training import array_files
from bevel.training.checkpoint import Checkpoints, StateHalves, digest_of
from bevel.training.checkpoint_metadata import CheckpointMetadata
from bevel.training.compiled_steps import CompiledSteps
from bevel.training.folder import RunFolder
from bevel.training.folder_run import FolderRun
from bevel.training.interrupts import RunInterrupted
from bevel.training.releaser import Releaser
from bevel.training.resume import ReplayDiffersError

WIDE = 512
OPTIONS = runs.options(checkpoint_every=4)
CONFIGS = {"independent": None, "BandMF": runs.BANDMF}


MEGABYTES = 360  # of a state, so that threads and imports of a restoration hardly count
SMALL = 1000  # batches, keys and metrics, of which more or fewer are prefetched


def live_bytes():
    """Bytes of large arrays over all devices. Looking at their shards would create more arrays."""
    sizes = (
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize * len(x.devices())
        for x in jax.live_arrays()
    )
    return sum(size for size in sizes if size > SMALL)


def params():
    key = np.random.default_rng(0)
    wide = key.normal(size=(runs.D, WIDE)).astype(np.float32)
    return {"w": wide, "out": np.ones((WIDE, 2), np.float32), "frozen": np.ones(WIDE, np.float32)}


def loss(params, data, prng):
    hidden = jnp.tanh(data["x"] @ params["w"]) * params["frozen"][None]
    return runs.loss(
        {"w": jnp.eye(2, 2), "b": jnp.zeros(2)}, {**data, "x": hidden @ params["out"]}, prng
    )


def trainer(config=None, axes=None, **changed):
    return runs.trainer(
        config=runs.plan() if config is None else config,
        loss_fn=loss,
        optimizer=optax.sgd(0.5, momentum=0.9),
        ema_decay=0.9,
        trainable=lambda path: path != "frozen",
        mesh=axes and make_mesh(axes),
        **changed,
    )


@pytest.fixture
def at_steps(monkeypatch):
    """The bytes of live arrays before each step, by fit: dicts by the number of the step."""
    seen = []
    real = CompiledSteps.__call__

    def measured(self, state, batch, keys):
        if seen and seen[-1] is not None:
            seen[-1][int(state.step)] = live_bytes()
        return real(self, state, batch, keys)

    monkeypatch.setattr(CompiledSteps, "__call__", measured)
    return seen


def fit(seen, of, folder=None, **changed):
    gc.collect()
    seen.append({})
    before = live_bytes()
    state = runs.fit(folder, of=of, begin=params(), options=OPTIONS, **changed)
    return state, {step: found - before for step, found in seen[-1].items()}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_resumed_run_keeps_as_much_as_a_fresh_one(at_steps, tmp_path, config):
    _, fresh = fit(at_steps, trainer(config), tmp_path / "fresh")
    _, first = fit(at_steps, trainer(config), tmp_path / "run", callback=runs.at_step(4))
    state, resumed = fit(at_steps, trainer(config), tmp_path / "run")
    assert sorted(resumed) == [4, 5, 6, 7] and sorted(first) == [0, 1, 2, 3]
    assert [resumed[step] for step in (5, 6, 7)] == [fresh[step] for step in (5, 6, 7)]
    one = sum(x.nbytes for x in jax.tree.leaves(state))
    assert max([*fresh.values(), *resumed.values()]) <= one


def test_a_run_that_resumes_on_another_mesh_keeps_as_much(at_steps, tmp_path):
    fit(at_steps, trainer(axes="data=4"), tmp_path / "run", callback=runs.at_step(4))
    _, resumed = fit(at_steps, trainer(axes="data=8", rules="fsdp"), tmp_path / "run")
    _, fresh = fit(at_steps, trainer(axes="data=8", rules="fsdp"), tmp_path / "fresh")
    assert [resumed[step] for step in (5, 6, 7)] == [fresh[step] for step in (5, 6, 7)]


def test_no_other_state_is_there_while_a_checkpoint_is_restored(tmp_path, monkeypatch):
    fit_once = lambda **k: runs.fit(tmp_path, of=trainer(), begin=params(), options=OPTIONS, **k)  # noqa: E731
    state = fit_once(callback=runs.at_step(4))
    one, found = sum(x.nbytes for x in jax.tree.leaves(state)), []
    del state
    real = Checkpoints.restore

    def restore(self, *args, **kwargs):
        found.append(live_bytes())
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Checkpoints, "restore", restore)
    before = live_bytes()
    fit_once()
    assert len(found) == 1 and found[0] - before < 0.1 * one


def test_an_interrupted_state_is_restored_without_the_released_one(tmp_path, monkeypatch):
    real_step, real_restore, found = CompiledSteps.__call__, Checkpoints.restore, []

    def interrupted(self, state, batch, keys):
        if int(state.step) == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return real_step(self, state, batch, keys)

    def restore(self, step, *args, **kwargs):
        found.append((step, live_bytes()))
        return real_restore(self, step, *args, **kwargs)

    with monkeypatch.context() as patched, pytest.raises(RunInterrupted):
        patched.setattr(CompiledSteps, "__call__", interrupted)
        runs.fit(tmp_path, of=trainer(), begin=params(), options=OPTIONS)
    gc.collect()
    one, before = sum(x.nbytes for x in jax.tree.leaves(trainer().init(params()))), live_bytes()
    monkeypatch.setattr(Checkpoints, "restore", restore)
    runs.fit(tmp_path, of=trainer(), begin=params(), options=OPTIONS)
    assert [step for step, _ in found] == [4, 6]
    assert all(size - before < 0.2 * one for _, size in found)


def test_steps_that_are_run_again_and_differ_leave_one_state(tmp_path, monkeypatch):
    runs.fit(tmp_path, of=trainer(), begin=params(), options=OPTIONS)
    _lose(tmp_path, 8)
    one, found = sum(x.nbytes for x in jax.tree.leaves(trainer().init(params()))), []
    real_stage, real_again = Releaser._stage, FolderRun.restore_again

    def differs_once(self, *args):
        monkeypatch.setattr(Releaser, "_stage", real_stage)
        raise ReplayDiffersError

    def again(self, like):
        found.append(live_bytes())
        return real_again(self, like)

    monkeypatch.setattr(Releaser, "_stage", differs_once)
    monkeypatch.setattr(FolderRun, "restore_again", again)
    before = live_bytes()
    with pytest.warns(UserWarning, match="attempt 1"):
        state = runs.fit(tmp_path, of=trainer(), begin=params(), options=OPTIONS)
    assert int(state.step) == 8 and len(found) == 1 and found[0] - before < 0.2 * one
    assert np.array_equal(state.params["frozen"], params()["frozen"])


def _lose(folder, step):
    for half in ("released", "private"):
        shutil.rmtree(folder / half / "checkpoints" / str(step))


# Checkpoints.


def large_halves(leaves=4, size=1 << 19):
    arrays = {f"w{k}": jnp.full(size, float(k)) for k in range(leaves)}
    return StateHalves({"params": arrays}, {"noise": jnp.ones(size)})


def test_a_checkpoint_makes_no_array_on_the_devices_and_one_copy_on_the_host(tmp_path, monkeypatch):
    folder, halves, live = RunFolder(tmp_path / "run"), large_halves(), []
    folder.create()
    checkpoints = Checkpoints(folder)
    one = sum(x.nbytes for x in jax.tree.leaves(halves))
    real = array_files.HostCopies.pieces

    def pieces(self):
        for piece in real(self):
            live.append(live_bytes())
            yield piece

    monkeypatch.setattr(array_files.HostCopies, "pieces", pieces)
    checkpoints.stage(halves, CheckpointMetadata(0, 0, "p", "k", "l", digest_of(halves)))
    checkpoints.wait()
    checkpoints.publish(0)
    live.clear()
    before = live_bytes()
    tracemalloc.start()
    checkpoints.stage(halves, CheckpointMetadata(1, 0, "p", "k", "l", digest_of(halves)))
    checkpoints.wait()
    _, host = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    checkpoints.close()
    assert live and max(live) - before < 0.01 * one
    assert host < 1.2 * one


@pytest.mark.full
def test_a_job_that_fits_can_be_resumed(tmp_path):
    fresh = _measured("run", tmp_path / "fresh", 8, "DP-SGD", MEGABYTES)
    _measured("run", tmp_path / "run", 4, "DP-SGD", MEGABYTES)
    resumed = _measured("run", tmp_path / "run", 8, "DP-SGD", MEGABYTES)
    assert max(fresh["live"], resumed["live"]) <= 1.02
    assert resumed["peak"] <= 1.2 * fresh["peak"]


@pytest.mark.full
@pytest.mark.parametrize("leaves", [1, 3, 12])
def test_a_checkpoint_takes_at_most_one_and_a_half_states_on_the_host(tmp_path, leaves):
    found = _measured("checkpoint", tmp_path / "run", leaves, MEGABYTES)
    assert found["live"] <= 1.01
    assert found["peak"] <= 1.5


def _measured(*arguments):
    script = Path(__file__).parents[2] / "benchmarks" / "checkpoint_memory.py"
    command = [sys.executable, str(script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
