"""Events for TensorBoard are written by the caller, who sees the errors."""

import errno
import threading

import pytest
from file_faults import RANDOM, Fault, FileFaults

from bevel.errors import FreeSpaceError
from bevel.training.events_file import EventsFile, has_tensorboard

pytestmark = pytest.mark.skipif(not has_tensorboard(), reason="needs tensorboardX")


def content(folder):
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


def test_numbers_are_written_without_a_thread(tmp_path):
    threads = threading.active_count()
    with EventsFile(tmp_path / "raw") as events:
        assert threading.active_count() == threads
        events.add([{"step": 1, "loss": 2.0, "done": True, "name": "x", "list": [1]}])
    found = content(tmp_path / "raw")
    assert b"loss" in found
    assert not any(name in found for name in (b"done", b"name", b"list", b"step"))


def test_files_that_are_opened_in_one_second_are_different(tmp_path):
    for step in range(3):
        with EventsFile(tmp_path / "raw") as events:
            events.add([{"step": step, "loss": 2.0}])
    assert len(list((tmp_path / "raw").iterdir())) == 3


def test_a_full_disk_is_an_error_and_not_a_wait_without_end(tmp_path):
    with EventsFile(tmp_path / "raw") as events:
        (path,) = (tmp_path / "raw").iterdir()
        fault = Fault("fsync", RANDOM.sub("*", f"raw/{path.name}"), 1, errno.ENOSPC)
        with FileFaults(tmp_path, fault), pytest.raises(FreeSpaceError, match="raw"):
            events.add([{"step": 0, "loss": 2.0}] * 50)
