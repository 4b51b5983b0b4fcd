"""What would happen to a run folder is said without changing it."""

import fcntl
import os

import pytest
from dp_accounting import GaussianDpEvent

from bevel.accounting import Budget
from bevel.accounting.ledger import Ledger, key_commitment, new_salt
from bevel.training.folder import RunFolder
from bevel.training.identity import Identity, write_identity
from bevel.training.outlook import folder_outlook

IDENTITY = Identity({"plan.steps": 10}, {"data": "d", "loss": "l"}, {})
WITHOUT_DATA = Identity({"plan.steps": 10}, {"data": "", "loss": "l"}, {})


def begun(tmp_path, *steps, staged=()):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    write_identity(folder.private, IDENTITY)
    for step in steps:
        (folder.released / "checkpoints" / str(step)).mkdir(parents=True)
    for step in staged:
        (folder.private / "staging" / str(step)).mkdir(parents=True)
    return folder


def outlook(folder, identity=WITHOUT_DATA, **options):
    before = snapshot(folder.root.parent)
    found = folder_outlook(folder.root, identity, 10, **options)
    assert snapshot(folder.root.parent) == before
    return found


def snapshot(root):
    return {
        str(path): (
            path.stat().st_mtime_ns,
            path.stat().st_mode,
            path.is_file() and path.read_bytes(),
        )
        for path in sorted(root.rglob("*"))
    }


def test_nothing_there_is_a_new_run(tmp_path):
    folder = RunFolder(tmp_path / "run")
    assert outlook(folder).status == "new"
    assert not folder.root.exists()


@pytest.mark.parametrize(
    ("published", "staged", "status", "step"),
    [
        ((0,), (), "resumes", 0),
        ((0, 4), (), "resumes", 4),
        ((0, 4), (7,), "resumes", 7),
        ((0, 10), (), "complete", 10),
    ],
)
def test_a_run_resumes_after_its_newest_checkpoint(tmp_path, published, staged, status, step):
    found = outlook(begun(tmp_path, *published, staged=staged))
    assert (found.status, found.step) == (status, step)


def test_another_plan_is_refused_and_a_loss_can_be_accepted(tmp_path):
    folder = begun(tmp_path, 0)
    other = Identity({"plan.steps": 12}, {"data": "", "loss": "l"}, {})
    found = outlook(folder, other)
    assert found.status == "refused" and "plan.steps 10 -> 12" in found.reason
    other = Identity({"plan.steps": 10}, {"data": "", "loss": "m"}, {})
    assert "the loss's program differs" in outlook(folder, other).reason
    assert outlook(folder, other, accept=("loss",)).status == "resumes"


def test_a_run_in_progress_is_refused(tmp_path):
    folder = begun(tmp_path, 0)
    held = folder.lock()
    assert "in use by another run" in outlook(folder).reason
    os.close(held)
    assert outlook(folder).status == "resumes"
    lock = os.open(folder.private / "lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not left locked
    os.close(lock)


def test_what_is_not_a_run_folder_is_refused(tmp_path):
    (tmp_path / "run").write_text("")
    assert "is a file" in outlook(RunFolder(tmp_path / "run")).reason
    old = tmp_path / "old"
    old.mkdir()
    (old / "run.json").write_text("{}")
    assert "earlier version of bevel" in outlook(RunFolder(old)).reason
    lost = begun(tmp_path / "lost", 0)
    (lost.private / "identity.json").unlink()
    assert "unknown what this run was started with" in outlook(lost).reason


def test_a_shared_ledger_says_what_is_spent(tmp_path):
    path = tmp_path / "all.jsonl"
    with Ledger.open(
        path, unit="example", relation="ADD_OR_REMOVE_ONE", budget=Budget(3, 1e-5)
    ) as ledger:
        run = ledger.run("earlier", plan="p", key=key_commitment(b"key", new_salt()))
        run.charge(0, 1, GaussianDpEvent(4.0))
    found = outlook(RunFolder(tmp_path / "run"), ledger=path)
    assert found.status == "new" and 0 < found.spent < 3
    assert (
        "already has a run 'earlier'"
        in outlook(RunFolder(tmp_path / "earlier"), ledger=path).reason
    )
