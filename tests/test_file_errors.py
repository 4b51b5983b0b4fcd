"""Errors of the file system name the path and say what to do."""

import errno
import os

import pytest

from bevel.errors import FixDataError, FixStorageError, FreeSpaceError
from bevel.file_errors import check_in_place, explain_file_errors, is_full, is_storage_fault


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_recognised_wherever_the_error_comes_from(tmp_path, number):
    full = pytest.raises(FreeSpaceError, match=r"disk is full.*last complete checkpoint")
    with full, explain_file_errors(tmp_path):
        raise RuntimeError("save failed") from OSError(number, os.strerror(number))
    assert is_full(ValueError("RESOURCE_EXHAUSTED: write failed [No space left on device]"))
    assert not is_full(ValueError("RESOURCE_EXHAUSTED: Out of memory allocating 5 bytes"))
    assert not is_full(None)


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EROFS, "remount it for writing"),
        (errno.EACCES, "Get permission"),
        (errno.EPERM, "do not allow this"),
        (errno.ENOENT, "moved or removed"),
        (errno.EMFILE, "ulimit -n"),
        (errno.EIO, "Check the disk"),
        (errno.ENOTEMPTY, "Check the disk and the permissions"),
    ],
)
def test_other_errors_say_what_to_change(tmp_path, number, advice):
    with pytest.raises(FixStorageError, match=advice) as raised, explain_file_errors(tmp_path):
        raise OSError(number, os.strerror(number))
    assert str(tmp_path) in str(raised.value) and "start again" in str(raised.value)
    assert isinstance(raised.value.__cause__, OSError)


def test_the_path_is_that_of_the_operation(tmp_path):
    with pytest.raises(FixStorageError, match="missing/file"), explain_file_errors(tmp_path):
        (tmp_path / "missing" / "file").write_text("")


def test_other_exceptions_pass_unchanged(tmp_path):
    with pytest.raises(FixDataError, match="no space left"), explain_file_errors(tmp_path):
        raise FixDataError("a record says: no space left")
    with pytest.raises(FileExistsError), explain_file_errors(tmp_path, but=(FileExistsError,)):
        tmp_path.mkdir()
    with pytest.raises(KeyError), explain_file_errors(tmp_path):
        raise KeyError("x")


def test_what_may_go_away_is_no_damage():
    assert is_storage_fault(OSError(errno.EIO, "")) and is_storage_fault(PermissionError(13, ""))
    assert not is_storage_fault(FileNotFoundError(errno.ENOENT, ""))
    assert is_storage_fault(ValueError("UNKNOWN: failed to read [os_error_code='5']"))
    assert not is_storage_fault(ValueError("NOT_FOUND: failed to open [os_error_code='2']"))
    assert not is_storage_fault(ValueError())


@pytest.mark.parametrize(
    ("number", "error", "said"),
    [
        (errno.EMFILE, FixStorageError, "Too many open files.*ulimit -n"),
        (errno.EACCES, FixStorageError, "Permission denied"),
        (errno.ENOSPC, FreeSpaceError, "disk is full"),
    ],
)
def test_the_number_that_a_library_only_writes_is_understood(tmp_path, number, error, said):
    text = f"RESOURCE_EXHAUSTED: Error writing local file: no words [os_error_code='{number}']"
    with pytest.raises(error, match=said), explain_file_errors(tmp_path):
        raise ValueError(text)
    assert is_full(ValueError(text)) == (error is FreeSpaceError)
    missing = ValueError("NOT_FOUND [os_error_code='2']")
    with pytest.raises(ValueError, match="NOT_FOUND"), explain_file_errors(tmp_path):
        raise missing


def test_a_file_that_is_not_at_its_path_is_noticed(tmp_path):
    path = tmp_path / "file"
    path.write_text("")
    descriptor = os.open(path, os.O_RDONLY)
    check_in_place(descriptor, path)
    path.rename(tmp_path / "moved")
    with pytest.raises(FixStorageError, match="moved, removed or replaced"):
        check_in_place(descriptor, path)
    path.write_text("another")
    with pytest.raises(FixStorageError, match="moved, removed or replaced"):
        check_in_place(descriptor, path)
    os.close(descriptor)
