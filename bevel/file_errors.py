"""Turns errors of the file system into errors that say what to do.

| the operating system says                       | error                                         |
| ----------------------------------------------- | --------------------------------------------- |
| no space, over quota, file too large            | `FreeSpaceError`                              |
| read-only, not permitted, gone, damaged storage | `FixStorageError`, which says what to change  |

`explain_file_errors` may be nested. The innermost block names the path, unless the error of the
operating system names one itself. Errors of bevel pass unchanged.
"""

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

from bevel.checks import in_one_line
from bevel.errors import BevelError, FixStorageError, FreeSpaceError

FULL_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# Libraries that write in C++ report only a text. XLA also says "resource_exhausted", for memory.
FULL_TEXTS = ("no space left", "disk quota", "file too large", "enospc", "edquot", "efbig")
MISSING_ERRNOS = {errno.ENOENT, errno.ENOTDIR, errno.ESTALE}
# What TensorStore, which reads the arrays of checkpoints in C++, writes into its messages.
_NUMBER_IN_TEXT = re.compile(r"\bos_error_code='(\d+)'")

_ADVICE = {
    errno.EROFS: "The file system is read-only: remount it for writing, or use another folder.",
    errno.EACCES: "Get permission to read and write it, or work as the user who started the run.",
    errno.EPERM: "The file system or the permissions of the folder do not allow this. Get "
    "permission, or use a folder on a local disk.",
    errno.EMFILE: "Close other files, or raise the limit with `ulimit -n`.",
    errno.ENFILE: "This machine has too many open files: end other programs.",
    errno.ENOMEM: "Free some memory.",
    errno.EIO: "Check the disk or the network storage.",
    errno.ENOLCK: "The file system cannot lock files. Use a folder on a local disk.",
} | dict.fromkeys(
    MISSING_ERRNOS, "It, or a folder above it, was moved or removed. Put it back, or create it."
)
_KEPT = "Then start again: nothing that was charged or released is lost"


@contextlib.contextmanager
def explain_file_errors(
    path: str | os.PathLike[str], *, but: tuple[type[OSError], ...] = ()
) -> Iterator[None]:
    """Raises `FreeSpaceError` or `FixStorageError` instead of an `OSError` in this block.

    Errors of the types in `but` pass unchanged. Put no code of the user into the block: its errors
    would be taken for errors of `path`.
    """
    passing: tuple[type[Exception], ...] = (BevelError, *but)
    try:
        yield
    except passing:
        raise
    except OSError as error:
        raise file_error(error, path) from error
    except Exception as error:
        if not (is_full(error) or is_storage_fault(error)):
            raise
        raise file_error(error, path) from error


def file_error(error: BaseException, path: str | os.PathLike[str]) -> BevelError:
    """The error to raise instead of `error`, which a file operation on `path` raised."""
    named = getattr(error, "filename", None)
    named = named if isinstance(named, str | os.PathLike) and os.path.isabs(named) else path
    number = _error_number(error)
    said = os.strerror(number) if number else in_one_line(error) or type(error).__name__
    if is_full(error):
        return FreeSpaceError(
            f"{named} could not be written because the disk is full ({said}). Free some space. "
            f"{_KEPT}, and a run resumes from its last complete checkpoint."
        )
    advice = _ADVICE.get(number or 0, "Check the disk and the permissions of the folder.")
    return FixStorageError(f"{named} could not be read or written ({said}). {advice} {_KEPT}.")


def is_full(error: BaseException | None) -> bool:
    """Returns whether an error, or one of its causes, reports a full disk."""
    while error is not None:
        if _error_number(error) in FULL_ERRNOS:
            return True
        if any(text in str(error).lower() for text in FULL_TEXTS):
            return True
        error = error.__cause__ or error.__context__
    return False


def is_storage_fault(error: BaseException) -> bool:
    """Returns whether an error may go away, so that it does not show that a file is damaged."""
    return _error_number(error) in _ADVICE.keys() - MISSING_ERRNOS


def _error_number(error: BaseException | None) -> int | None:
    """The number of the operating system in an error or one of its causes. None if none has one."""
    while error is not None:
        if isinstance(error, OSError):
            return error.errno
        found = _NUMBER_IN_TEXT.search(str(error))
        if found:
            return int(found[1])
        error = error.__cause__
    return None


def check_in_place(descriptor: int, path: Path) -> None:
    """Raises unless `path` leads to the file that is open as `descriptor`.

    What is written to a file that was removed or replaced would be lost, and what is written to a
    folder that was moved would be in two places.
    """
    with explain_file_errors(path):
        try:
            same = os.path.samestat(os.stat(path), os.fstat(descriptor))
        except (FileNotFoundError, NotADirectoryError):
            same = False
    if not same:
        raise FixStorageError(
            f"{path} was moved, removed or replaced while a run had it open, so what the run "
            "writes would be lost. Put it back, or pass its new place, and start again: the run "
            "resumes from its last complete checkpoint."
        )
