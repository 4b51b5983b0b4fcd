"""Faults of the storage of a ledger: no charge is lost, none counts twice, and a retry works."""

import contextlib
import errno
import os
import threading

import pytest
from file_faults import Fault, FileFaults

from bevel.accounting.ledger import Ledger
from bevel.accounting.ledger.durable_files import create_file
from bevel.errors import FixStorageError, FreeSpaceError, RestoreLedgerError

TERMS = {"unit": "example", "relation": "ADD_OR_REMOVE_ONE"}
EVENT = {"kind": "GaussianDpEvent", "noise_multiplier": 1.0}


def charge(ledger, step):
    ledger.run("run", plan="plan", key="0" * 64).charge(step, step + 1, EVENT)


def charged(path):
    ledger = Ledger.read(path, full=True)
    return ledger.run("run", plan="plan", key="0" * 64).charged_until


FAULTS = [("write", errno.ENOSPC), ("write", errno.EDQUOT), ("fsync", errno.EIO)]


@pytest.mark.parametrize(("operation", "number"), FAULTS)
def test_a_charge_that_fails_is_not_in_the_ledger_and_can_be_made_again(
    operation, number, tmp_path
):
    path = tmp_path / "ledger.jsonl"
    with Ledger.open(path, **TERMS) as ledger:
        charge(ledger, 0)
        before = path.read_bytes()
        expected = FreeSpaceError if number != errno.EIO else FixStorageError
        fault = Fault(operation, "ledger.jsonl", 1, number)
        with FileFaults(tmp_path, fault), pytest.raises(expected, match=r"ledger\.jsonl"):
            charge(ledger, 1)
        assert path.read_bytes() == before
        charge(ledger, 1)  # with the same object
    assert charged(path) == 2


def test_if_the_line_cannot_be_removed_either_the_ledger_must_be_opened_again(tmp_path, recwarn):
    path = tmp_path / "ledger.jsonl"
    with Ledger.open(path, **TERMS) as ledger:
        charge(ledger, 0)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(os, "ftruncate", lambda *_: _fail(errno.EIO))
            fault = Fault("write", "ledger.jsonl", 1, errno.ENOSPC)
            with FileFaults(tmp_path, fault), pytest.raises(FreeSpaceError):
                charge(ledger, 1)
        with pytest.raises(RestoreLedgerError, match="Open it again"):
            charge(ledger, 1)
    with Ledger.open(path, **TERMS) as ledger:
        charge(ledger, 1)
    assert charged(path) == 2
    assert "incomplete line" in str(recwarn.pop(UserWarning).message)


def _fail(number):
    raise OSError(number, os.strerror(number))


def test_every_operation_of_opening_may_fail_and_a_retry_works(tmp_path):
    whole = tmp_path / "whole"
    whole.mkdir()

    def use(folder):
        path = folder / "ledger.jsonl"
        with Ledger.open(path, **TERMS, anchor=folder / "anchor") as ledger:
            step = ledger.run("run", plan="plan", key="0" * 64).charged_until
            charge(ledger, step)

    with FileFaults(whole) as log:
        use(whole)
        use(whole)
    assert len(log.seen) > 15
    for row, ((operation, path), count) in enumerate(sorted(log.seen.items())):
        folder = tmp_path / str(row)
        folder.mkdir()
        numbers = (errno.EIO, errno.EROFS, errno.EACCES)
        fault = Fault(operation, path, (row % count) + 1, numbers[row % 3])
        failures = 0
        with FileFaults(folder, fault):
            for _ in range(2):
                try:
                    use(folder)
                except FixStorageError as error:
                    assert str(folder) in str(error)
                    failures += 1
        use(folder)
        until = charged(folder / "ledger.jsonl")
        # A charge that raised may count, but only once.
        assert 3 - failures <= until <= 3, str(fault)


@pytest.mark.parametrize("how", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS, "absent", "unknown"])
def test_without_hard_links_a_ledger_is_created_once(how, tmp_path, monkeypatch):
    def link(*args, **kwargs):
        raise NotImplementedError if how == "unknown" else OSError(how, "no links")

    monkeypatch.delattr(os, "link") if how == "absent" else monkeypatch.setattr(os, "link", link)
    path, made = tmp_path / "ledger.jsonl", []
    barrier = threading.Barrier(8)

    def create(number):
        barrier.wait()
        if create_file(path, b"%d\n" % number):
            made.append(number)

    threads = [threading.Thread(target=create, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() == b"%d\n" % made[0] and len(made) == 1
    assert os.listdir(tmp_path) == ["ledger.jsonl"]
    path.unlink()
    with Ledger.open(path, **TERMS) as ledger:
        charge(ledger, 0)
    assert charged(path) == 1


def test_a_removed_ledger_is_put_back_and_a_moved_one_is_not(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with Ledger.open(path, **TERMS) as ledger:
        charge(ledger, 0)
        path.unlink()
        with pytest.raises(RestoreLedgerError, match="content was put back"):
            charge(ledger, 1)
    assert charged(path) == 1
    with Ledger.open(path, **TERMS) as ledger, contextlib.suppress(FileNotFoundError):
        charge(ledger, 1)
        path.rename(tmp_path / "moved")
        with pytest.raises(RestoreLedgerError, match="Put it back"):
            charge(ledger, 2)
        assert not path.exists()
    assert charged(tmp_path / "moved") == 2
