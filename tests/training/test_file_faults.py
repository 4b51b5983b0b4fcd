"""One file operation of a run fails: a clear error, everything is closed, and nothing is lost.

The run is started again in the same process, once the fault is gone. Then it must be what an
undisturbed run would have been, to the last bit, and must have charged nothing more.
"""

import errno
import json
import shutil

import pytest
import simulator
import training_runs as runs
from file_faults import WRITES, Fault, FileFaults

from bevel.accounting import Ledger
from bevel.errors import BevelError, FreeSpaceError

# A failed save leaves futures of Orbax behind.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
STEPS = 4


@pytest.fixture(scope="module")
def trainer():
    return runs.trainer(config=runs.plan(iterations=STEPS))


@pytest.fixture(scope="module")
def whole(trainer, tmp_path_factory):
    """The state and the released files of an undisturbed run, and its file operations."""
    root = tmp_path_factory.mktemp("whole")
    with FileFaults(root) as log:
        state = runs.fit(root / "run", of=trainer)
    return state, simulator.files_of(root / "run" / "released"), log.seen


def check_fault(fault, root, whole, trainer):
    """Trains with a fault, then without it. Returns whether the operation was reached."""
    folder, error = root / "run", None
    with FileFaults(root, fault) as log:
        try:
            runs.fit(folder, of=trainer)
        except BevelError as raised:  # any other error fails the test
            error = raised
    if error is not None:
        assert str(root) in str(error), error
        assert "start again" in str(error), error
        full = fault.number in (errno.ENOSPC, errno.EDQUOT)
        assert isinstance(error, FreeSpaceError) == full, error
    state, files, _ = whole
    again = runs.fit(folder, of=trainer)
    assert runs.same_bits(again, state)
    released = simulator.files_of(folder / "released")
    differing = [k for k in released | files if released.get(k) != files.get(k)]
    assert not differing, differing  # the ledger, its charges and metrics.jsonl included
    Ledger.read(folder / "released" / "ledger.jsonl", full=True)
    raw = (folder / "private" / "raw.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in raw] == list(range(STEPS))
    left = [path.name for path in (folder / "private").iterdir() if path.name.startswith(".")]
    assert not left
    return log.happened


STAGED = "run/private/staging/2"
FEW = [
    Fault("mkdir", "run/private", 1, errno.EROFS),
    Fault("flock", "run/private/lock", 1, errno.ENOLCK),
    Fault("link", "run/released/.ledger.jsonl.*", 1, errno.ENOSPC),
    Fault("stat", "run/released/ledger.jsonl", 5, errno.EIO),
    Fault("write", "run/private/.secrets.json.*", 1, errno.EDQUOT),
    Fault("replace", "run/released/.run.json.*", 1, errno.EACCES),
    Fault("rename", f"{STAGED}.orbax-checkpoint-tmp", 1, errno.ENOSPC),
    Fault("open", f"{STAGED}/released/checkpoint.json", 1, errno.ENOSPC),
    Fault("scandir", f"{STAGED}/released", 1, errno.EIO),
    Fault("fsync", "run/private/releases.jsonl", 1, errno.EIO),
    Fault("write", "run/private/raw.jsonl", 2, errno.ENOSPC),
    Fault("write", "run/released/ledger.jsonl", 1, errno.ENOSPC),
    Fault("fsync", "run/released/ledger.jsonl", 3, errno.EIO),
    Fault("rename", f"{STAGED}/released", 1, errno.EROFS),
    Fault("write", "run/released/metrics.jsonl", 1, errno.ENOSPC),
    Fault("utime", "run/released", 5, errno.EROFS),
]


def test_a_failed_operation_of_a_run_is_a_clear_error_and_loses_nothing(whole, trainer, tmp_path):
    for number, fault in enumerate(FEW):
        assert check_fault(fault, tmp_path / str(number), whole, trainer), f"{fault} not reached"


def all_faults(seen):
    """Operations of the first release, and each other operation the first and the last time."""
    numbers = {True: (errno.ENOSPC, errno.EROFS, errno.EDQUOT), False: (errno.EIO, errno.EACCES)}
    for row, ((operation, path), count) in enumerate(sorted(seen.items())):
        if "staging/0" in path or "staging/4" in path:
            continue
        if operation == "utime" and "staging" in path and not path.endswith("step"):
            continue
        for occurrence in sorted({1, count}):
            choices = numbers[operation in (*WRITES, "open")]
            yield Fault(operation, path, occurrence, choices[(row + occurrence) % len(choices)])


@pytest.mark.full
@pytest.mark.parametrize("part", range(4))
def test_any_operation_of_a_run_may_fail(part, whole, trainer, tmp_path):
    reached = 0
    faults = list(all_faults(whole[2]))
    assert len(faults) > 200
    for number, fault in enumerate(faults[part::12]):  # a third: all of them take five minutes
        root = tmp_path / str(number)
        try:
            reached += check_fault(fault, root, whole, trainer)
        except BaseException as error:
            error.add_note(str(fault))
            raise
        shutil.rmtree(root)
    assert reached > 15


def test_any_operation_of_a_resumption_may_fail(whole, trainer, tmp_path):
    """Reading a checkpoint does not take a failing disk for a damaged file."""
    half = tmp_path / "half" / "run"
    runs.fit(half, of=trainer, callback=runs.at_step(2))
    places = [
        ("open", "run/private/run.json", 1),
        ("open", "run/private/identity.json", 1),
        ("open", "run/private/checkpoints/2/checkpoint.json", 1),
        ("open", "run/private/checkpoints/2/checkpoint.json", 2),
        ("pread", "run/released/ledger.jsonl", 1),
    ]
    for number, (operation, path, count) in enumerate(places):
        root = tmp_path / str(number)
        shutil.copytree(half.parent, root)
        fault = Fault(operation, path, count, errno.EIO)
        assert check_fault(fault, root, whole, trainer), f"{fault} not reached"
        assert not (root / "run" / "private" / "damaged").exists()
