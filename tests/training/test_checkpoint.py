"""Checkpoints: a state and what it belongs to, together or not at all, on any mesh."""

import dataclasses
import errno
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from training_runs import same_bits

from bevel.errors import FreeSpaceError, RestoreCheckpointError
from bevel.sharding import make_mesh
from bevel.training.checkpoint import Checkpoints, Meta, full_disk_explained, is_full

# A read that fails leaves other reads of Orbax behind, which then find their event loop closed.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

META = Meta(
    step=0, attempt=0, plan="p", key="k", ledger="l", exactly={"mesh": {"data": [8, "Auto"]}}
)


def state(axes="data=4,model=2", scale=1):
    mesh = make_mesh(axes)
    spec = P("data", "model" if "model" in axes else None)
    x = jnp.arange(16.0).reshape(8, 2) * scale
    rest = [jnp.ones(3, jnp.bfloat16), None, (), {"on": jnp.array([True, False])}]
    return {
        "x": jax.device_put(x, NamedSharding(mesh, spec)),
        "rest": jax.tree.map(lambda leaf: jax.device_put(leaf, NamedSharding(mesh, P())), rest),
    }


@pytest.fixture
def saved(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (1, 2, 3):
        checkpoints.save(state(scale=step), dataclasses.replace(META, step=step))
        checkpoints.wait()
    yield checkpoints
    checkpoints.close()


def accept(meta):
    pass


def test_the_newest_are_kept_and_restored_on_another_mesh(saved):
    assert saved.steps() == [3, 2] and not saved.is_saving()
    like = state("data=8", scale=0)
    found, meta = saved.restore(3, like)
    assert same_bits(found, state(scale=3))
    assert found["x"].sharding == like["x"].sharding
    assert meta == dataclasses.replace(META, step=3, digest=meta.digest) and len(meta.digest) == 3


def test_saving_does_not_see_what_happens_to_the_state_afterwards(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    step = jax.jit(lambda s: jax.tree.map(lambda x: x + x, s), donate_argnums=0)
    moving = {"x": jnp.ones((256, 256))}
    checkpoints.save(moving, META)
    for _ in range(20):
        moving = step(moving)
    jax.block_until_ready(moving)
    checkpoints.wait()
    found, _ = checkpoints.restore(0, {"x": jnp.zeros((256, 256))})
    assert np.array_equal(found["x"], np.ones((256, 256)))
    checkpoints.close()


def test_a_flipped_bit_is_found_and_the_one_before_is_taken(saved, tmp_path):
    for path in (saved.folder / "3" / "state").rglob("d/*"):
        data = bytearray(path.read_bytes())
        data[-9] ^= 4
        path.write_bytes(data)
    with pytest.raises(RestoreCheckpointError, match=r"3 cannot be read|3 is damaged"):
        saved.restore(3, state())
    with pytest.warns(UserWarning, match="Going on from step 2"):
        found, meta = saved.newest_good(state(), 5, accept)
    assert meta.step == 2 and same_bits(found, state(scale=2))
    assert saved.steps() == [2] and saved.damaged(5) == [3] and saved.damaged(0) == []
    saved.save(state(scale=3), dataclasses.replace(META, step=3))  # the step can be taken again
    saved.wait()
    assert saved.steps() == [3, 2]


def test_checksums_are_compared_with_what_was_read(saved, monkeypatch):
    monkeypatch.setattr("bevel.training.checkpoint.digest", lambda tree: ["0"] * 3)
    with pytest.raises(RestoreCheckpointError, match="do not have the checksums"):
        saved.restore(3, state())


def test_one_that_does_not_belong_is_passed_over(saved):
    def check(meta):
        if meta.step == 3:
            raise RestoreCheckpointError("3 is of another plan")

    with pytest.warns(UserWarning, match="3 is of another plan. Going on from step 2"):
        assert saved.newest_good(state(), 0, check)[1].step == 2


def test_without_a_good_one_there_is_an_error_and_with_none_there_is_none(saved, tmp_path):
    def never(meta):
        raise RestoreCheckpointError("not this one")

    with pytest.raises(RestoreCheckpointError, match="is good: not this one; not this one"):
        saved.newest_good(state(), 0, never)
    assert saved.steps() == [3, 2]
    empty = Checkpoints(tmp_path / "empty")
    assert empty.newest_good(state(), 0, accept) is None
    empty.close()


def test_a_full_disk_is_said_to_be_one(tmp_path):
    for number in (errno.ENOSPC, errno.EDQUOT):
        full = pytest.raises(FreeSpaceError, match=r"disk is full.*last whole checkpoint")
        with full, full_disk_explained(tmp_path):
            raise RuntimeError("save failed") from OSError(number, os.strerror(number))
    with pytest.raises(OSError, match="permission"), full_disk_explained(tmp_path):
        raise OSError(errno.EACCES, "permission")
    assert is_full(ValueError("RESOURCE_EXHAUSTED: write failed"))
    assert not is_full(None)
