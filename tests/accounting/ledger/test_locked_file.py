"""A file that one process at a time appends to."""

import os
import threading
import time

import pytest

from bevel.accounting.ledger.locked_file import LockedFile
from bevel.errors import FixArgumentsError, FreeSpaceError, RestoreLedgerError


@pytest.fixture(autouse=True)
def empty_file(tmp_path):
    (tmp_path / "f").touch()


def test_appended_bytes_can_be_read(tmp_path):
    file = LockedFile(tmp_path / "f")
    file.append(b"one\n")
    file.append(b"two\n")
    assert file.read() == b"one\ntwo\n"
    file.cut(len("two\n"))
    file.append(b"three\n")
    file.close()
    assert (tmp_path / "f").read_bytes() == b"one\nthree\n"


def test_bytes_are_synced_before_append_returns(tmp_path, monkeypatch):
    calls = []
    write, sync = os.write, os.fsync
    monkeypatch.setattr(os, "write", lambda *a: (calls.append("write"), write(*a))[1])
    monkeypatch.setattr(os, "fsync", lambda *a: (calls.append("sync"), sync(*a))[1])
    file = LockedFile(tmp_path / "f")
    # Lines that a killed process wrote, and the folder, which holds the name.
    assert calls == ["sync", "sync"]
    file.append(b"one\n")
    assert calls == ["sync", "sync", "write", "sync"]
    file.close()


def test_partial_writes_are_completed(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:2]))
    file = LockedFile(tmp_path / "f")
    file.append(b"a long line\n")
    assert file.read() == b"a long line\n"
    file.close()


def test_nothing_is_appended_after_a_failed_write(tmp_path, monkeypatch):
    file = LockedFile(tmp_path / "f")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(FreeSpaceError, match="No space"):
        patch.setattr(os, "fsync", full)
        file.append(b"one\n")
    with pytest.raises(RestoreLedgerError, match=r"an earlier write to .* failed"):
        file.append(b"two\n")
    file.close()
    again = LockedFile(tmp_path / "f")
    again.append(b"two\n")
    again.close()


def test_a_second_writer_is_refused(tmp_path):
    first = LockedFile(tmp_path / "f")
    with pytest.raises(FixArgumentsError, match="locked by another run"):
        LockedFile(tmp_path / "f")
    first.close()
    LockedFile(tmp_path / "f").close()


def test_a_second_writer_can_wait(tmp_path):
    first = LockedFile(tmp_path / "f")
    order = []

    def second():
        file = LockedFile(tmp_path / "f", wait=True)
        order.append("second")
        assert file.read() == b"first\n"
        file.append(b"second\n")
        file.close()

    thread = threading.Thread(target=second)
    thread.start()
    time.sleep(0.05)
    first.append(b"first\n")
    order.append("first")
    first.close()
    thread.join(10)
    assert order == ["first", "second"]
    assert (tmp_path / "f").read_bytes() == b"first\nsecond\n"


def test_writes_by_other_programs_are_detected(tmp_path):
    file = LockedFile(tmp_path / "f")
    with open(tmp_path / "f", "ab") as other:
        other.write(b"x")
    with pytest.raises(RestoreLedgerError, match="changed by another program"):
        file.append(b"one\n")
    file.close()


@pytest.mark.parametrize("replaced", [True, False])
def test_a_moved_or_replaced_file_is_detected(tmp_path, replaced):
    file = LockedFile(tmp_path / "f")
    os.rename(tmp_path / "f", tmp_path / "g")
    if replaced:
        (tmp_path / "f").write_bytes(b"")
    with pytest.raises(RestoreLedgerError, match="moved, removed or replaced"):
        file.append(b"one\n")
    file.close()


def test_a_child_process_must_open_the_file_itself(tmp_path, monkeypatch):
    file = LockedFile(tmp_path / "f")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(FixArgumentsError, match="opened by another process"):
        file.append(b"one\n")
    file.close()


def test_opening_creates_and_changes_no_file(tmp_path):
    with pytest.raises(FixArgumentsError, match="does not exist"):
        LockedFile(tmp_path / "g")
    assert not (tmp_path / "g").exists()
    os.utime(tmp_path / "f", ns=(1, 1))
    LockedFile(tmp_path / "f").close()
    assert (tmp_path / "f").stat().st_mtime_ns == 1
