"""Turns the various errors of a full disk into a `FreeSpaceError`."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from bevel.errors import FreeSpaceError

FULL_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
FULL_TEXTS = ("no space left", "disk quota", "file too large", "resource_exhausted")


@contextlib.contextmanager
def explain_full_disk(path: Path) -> Iterator[None]:
    """Raises `FreeSpaceError` instead of any error that a full disk caused in this block."""
    try:
        yield
    except Exception as error:
        if not is_full(error):
            raise
        raise FreeSpaceError(
            f"{path} could not be written because the disk is full ({error}). Everything that was "
            "released is saved and charged. Free some space and start again: the run resumes from "
            "its last complete checkpoint."
        ) from error


def is_full(error: BaseException | None) -> bool:
    """Returns whether an error, or one of its causes, reports a full disk."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL_ERRNOS:
            return True
        if any(text in str(error).lower() for text in FULL_TEXTS):
            return True
        error = error.__cause__ or error.__context__
    return False
