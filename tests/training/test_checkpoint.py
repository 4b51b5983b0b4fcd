"""Checkpoints have two halves that are staged and published together, on any mesh."""

import dataclasses
import errno
import json
import os
import shutil
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from training_runs import same_bits

from bevel.errors import FixStorageError, RestoreCheckpointError
from bevel.sharding import make_mesh
from bevel.training.checkpoint import Checkpoints, StateHalves, digest_of
from bevel.training.checkpoint_metadata import CheckpointMetadata
from bevel.training.folder import RunFolder

# A failed read leaves other reads of Orbax pending, which then find their event loop closed.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

RELEASE = {"attempt": 0, "first": 0, "stop": 5, "before": [], "rows": [], "after": []}
RELEASE |= {"exactly": {}}
META = CheckpointMetadata(step=0, attempt=0, plan="p", key="k", ledger="l")


def state(axes="data=4,model=2", scale=1):
    mesh = make_mesh(axes)
    spec = P("data", "model" if "model" in axes else None)
    x = jnp.arange(16.0).reshape(8, 2) * scale
    rest = [jnp.ones(3, jnp.bfloat16), None, (), {"on": jnp.array([True, False])}]
    return StateHalves(
        {
            "x": jax.device_put(x, NamedSharding(mesh, spec)),
            "rest": jax.tree.map(lambda leaf: jax.device_put(leaf, NamedSharding(mesh, P())), rest),
        },
        {"noise": jax.device_put(x + 1, NamedSharding(mesh, spec))},
    )


def opened(path, **options):
    folder = RunFolder(path)
    folder.create()
    return Checkpoints(folder, **options)


def save(checkpoints, halves, step):
    stage(checkpoints, halves, step)
    checkpoints.publish(step)


def stage(checkpoints, halves, step):
    meta = dataclasses.replace(META, step=step, digest=digest_of(halves))
    checkpoints.stage(halves, meta, RELEASE)
    checkpoints.wait()


@pytest.fixture
def saved(tmp_path):
    checkpoints = opened(tmp_path, keep=2)
    for step in (1, 2, 3):
        save(checkpoints, state(scale=step), step)
    yield checkpoints
    checkpoints.close()


def accept(meta):
    pass


def flip(folder):
    for path in folder.rglob("0*/[0-9]*"):
        data = bytearray(path.read_bytes())
        data[-9] ^= 4
        path.write_bytes(data)


def test_the_newest_are_kept_and_restored_on_another_mesh(saved, tmp_path):
    assert saved.steps() == [3, 2]
    for half in ("released", "private"):
        assert sorted(os.listdir(tmp_path / half / "checkpoints")) == ["2", "3"]
    like = state("data=8", scale=0)
    found, meta = saved.restore(3, like)
    assert same_bits(found, state(scale=3))
    assert found.released["x"].sharding == like.released["x"].sharding
    assert meta == dataclasses.replace(META, step=3, digest=meta.digest) and len(meta.digest) == 4


def test_arrays_without_elements_are_restored_though_nothing_is_written(tmp_path):
    halves = state()
    where = halves.released["x"].sharding
    halves.released["none"] = jax.device_put(jnp.zeros((0, 4)), where)
    halves.private["none"] = jax.device_put(jnp.zeros((4, 0), jnp.bfloat16), where)
    checkpoints = opened(tmp_path)
    save(checkpoints, halves, 5)
    restored, _ = checkpoints.restore(5, halves)
    checkpoints.close()
    same_bits(restored, halves)
    assert restored.released["none"].sharding == where


def test_a_period_keeps_more(tmp_path):
    checkpoints = opened(tmp_path, keep=1, keep_period=2)
    for step in range(5):
        save(checkpoints, state(scale=step), step)
    assert checkpoints.steps() == [4, 2, 0]
    checkpoints.close()


def test_nothing_is_released_before_it_is_published(tmp_path):
    checkpoints = opened(tmp_path)
    assert checkpoints.staged() is None
    stage(checkpoints, state(), 5)
    assert checkpoints.steps() == [] and not list((tmp_path / "released" / "checkpoints").iterdir())
    assert checkpoints.staged().meta.step == 5
    checkpoints.close()
    again = opened(tmp_path)  # by the process after it
    again.publish(5)
    assert again.steps() == [5] and again.staged() is None
    assert same_bits(again.restore(5, state(scale=0))[0], state())
    again.close()


def test_a_checkpoint_is_on_disk_before_it_is_charged_and_after_it_is_published(
    tmp_path, monkeypatch
):
    """A power failure between charge and publication must not lose what was charged."""
    synced, real = set(), os.fsync

    def fsync(descriptor):
        found = os.fstat(descriptor)
        synced.add((found.st_ino, found.st_mtime_ns))
        real(descriptor)

    def not_synced(*paths):
        return [x for x in paths if (x.stat().st_ino, x.stat().st_mtime_ns) not in synced]

    checkpoints, staging = opened(tmp_path), tmp_path / "private" / "staging"
    monkeypatch.setattr(os, "fsync", fsync)
    stage(checkpoints, state(), 5)
    assert len(list(staging.rglob("*"))) > 20
    assert not not_synced(*staging.rglob("*"), staging)
    checkpoints.publish(5)
    halves = [tmp_path / half / "checkpoints" for half in ("private", "released")]
    assert not not_synced(*halves)
    checkpoints.close()


def test_a_checkpoint_that_cannot_be_staged_is_an_error_at_once(tmp_path):
    """If threads of Orbax are left that wait for a folder, the process cannot end."""
    checkpoints, staging = opened(tmp_path), tmp_path / "private" / "staging"
    staging.rmdir()
    staging.write_text("a file")
    before = set(threading.enumerate())
    with pytest.raises(FixStorageError, match="staging"):
        stage(checkpoints, state(), 5)
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert not {name for name in left if not name.startswith("asyncio")}  # those are idle
    staging.unlink()
    staging.mkdir()
    save(checkpoints, state(), 5)
    assert checkpoints.steps() == [5]
    checkpoints.close()


def test_what_is_staged_can_be_gone_on_from(tmp_path):
    checkpoints = opened(tmp_path)
    stage(checkpoints, state(), 5)
    stage(checkpoints, state(scale=7), 7)
    assert checkpoints.staged().meta.step == 7 and checkpoints.staged().release == RELEASE
    found, _ = checkpoints.restore(7, state("data=8", scale=0), staged=True)
    assert same_bits(found, state(scale=7)) and checkpoints.steps() == []
    checkpoints.publish(7)
    assert checkpoints.staged() is None and checkpoints.steps() == [7]
    checkpoints.close()


def test_a_publication_that_was_cut_short_is_finished(tmp_path):
    checkpoints = opened(tmp_path)
    stage(checkpoints, state(), 5)
    private = tmp_path / "private"
    (private / "staging" / "5" / "private").rename(private / "checkpoints" / "5")
    assert checkpoints.staged().meta.step == 5
    checkpoints.publish(5)
    assert same_bits(checkpoints.restore(5, state(scale=0))[0], state())
    assert os.listdir(private / "staging") == []
    checkpoints.close()


def test_what_is_not_whole_is_not_staged_and_is_discarded(tmp_path):
    checkpoints = opened(tmp_path)
    stage(checkpoints, state(), 5)
    staging = tmp_path / "private" / "staging"
    (staging / "5" / "released" / "checkpoint.json").unlink()
    (staging / "7.orbax-checkpoint-tmp").mkdir()
    assert checkpoints.staged() is None
    checkpoints.discard_staged()
    assert os.listdir(staging) == []
    checkpoints.close()


def test_a_step_that_is_published_again_replaces_the_first(saved):
    save(saved, state(scale=9), 3)
    assert saved.steps() == [3, 2]
    assert same_bits(saved.restore(3, state(scale=0))[0], state(scale=9))


def test_the_released_half_has_no_noise_no_key_and_no_time(saved, tmp_path):
    released = tmp_path / "released" / "checkpoints" / "3"
    assert not [path for path in released.rglob("*") if "noise" in path.name]
    text = b"".join(path.read_bytes() for path in released.rglob("*") if path.is_file())
    assert b"noise" not in text and b"timestamp" not in text and b"orbax-checkpoint-tmp" not in text
    fields = json.loads((released / "checkpoint.json").read_text())
    assert fields == {"step": 3, "attempt": 0, "plan": "p"}
    assert len({path.stat().st_mtime for path in released.rglob("*")}) == 1


def test_saving_does_not_see_what_happens_to_the_state_afterwards(tmp_path):
    checkpoints = opened(tmp_path)
    step = jax.jit(lambda s: jax.tree.map(lambda x: x + x, s), donate_argnums=0)
    moving = StateHalves({"x": jnp.ones((256, 256))}, {"n": jnp.ones(3)})
    checkpoints.stage(moving, dataclasses.replace(META, digest=digest_of(moving)))
    for _ in range(20):
        moving = step(moving)
    jax.block_until_ready(moving)
    checkpoints.wait()
    checkpoints.publish(0)
    like = StateHalves({"x": jnp.zeros((256, 256))}, {"n": jnp.zeros(3)})
    found, _ = checkpoints.restore(0, like)
    assert np.array_equal(found.released["x"], np.ones((256, 256)))
    checkpoints.close()


@pytest.mark.parametrize("half", ["released", "private"])
def test_a_flipped_bit_is_found_and_the_one_before_is_taken(saved, tmp_path, half):
    flip(tmp_path / half / "checkpoints" / "3")
    with pytest.raises(RestoreCheckpointError, match=r"3 cannot be read|3 is damaged"):
        saved.restore(3, state())
    with pytest.warns(UserWarning, match="Resuming from step 2"):
        found, meta = saved.restore_newest(state(), 5, accept)
    assert meta.step == 2 and same_bits(found, state(scale=2))
    assert saved.steps() == [2] and saved.damaged_steps() == [3]
    assert sorted(os.listdir(tmp_path / "private" / "damaged" / "3-5-0")) == ["private", "released"]
    save(saved, state(scale=3), 3)  # the step can be taken again
    assert saved.steps() == [3, 2]


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EMFILE])
def test_arrays_that_cannot_be_read_now_are_not_damaged(saved, monkeypatch, number):
    """TensorStore reads them in C++, and says only in a text what the operating system said."""

    def fail(*_):
        text = f"UNKNOWN: Error reading local file \"x/0.0\" [os_error_code='{number}']"
        raise Exception("Encountered error while reading") from ValueError(text)

    said = rf"checkpoints/3 .*{os.strerror(number)}.*start again"
    with monkeypatch.context() as patched, pytest.raises(FixStorageError, match=said):
        patched.setattr("bevel.training.checkpoint.read_arrays", fail)
        saved.restore_newest(state(), 5, accept)
    assert saved.steps() == [3, 2] and not saved.damaged_steps()
    assert same_bits(saved.restore_newest(state(), 0, accept)[0], state(scale=3))


def test_a_released_half_without_its_private_one_is_not_a_checkpoint(saved, tmp_path):
    shutil.rmtree(tmp_path / "private" / "checkpoints" / "3")
    with pytest.warns(UserWarning, match="Resuming from step 2"):
        assert saved.restore_newest(state(), 0, accept)[1].step == 2


def test_checksums_are_compared_with_what_was_read(saved, monkeypatch):
    monkeypatch.setattr("bevel.training.checkpoint.digest", lambda tree: ["0"] * 4)
    with pytest.raises(RestoreCheckpointError, match="do not match the checksums"):
        saved.restore(3, state())


def test_one_that_does_not_belong_is_passed_over(saved):
    def check(meta):
        if meta.step == 3:
            raise RestoreCheckpointError("3 is of another plan")

    with pytest.warns(UserWarning, match="3 is of another plan. Resuming from step 2"):
        assert saved.restore_newest(state(), 0, check)[1].step == 2


def test_no_usable_checkpoint_is_an_error_but_no_checkpoint_is_not(saved, tmp_path):
    def never(meta):
        raise RestoreCheckpointError("not this one")

    with pytest.raises(RestoreCheckpointError, match="is usable: not this one; not this one"):
        saved.restore_newest(state(), 0, never)
    assert saved.steps() == [3, 2]
    empty = opened(tmp_path / "empty")
    assert empty.restore_newest(state(), 0, accept) is None
    empty.close()
