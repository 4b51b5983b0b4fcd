"""A full disk, in words."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from bevel.errors import FreeSpaceError

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
FULL_TEXTS = ("no space left", "disk quota", "file too large", "resource_exhausted")


@contextlib.contextmanager
def full_disk_explained(where: Path) -> Iterator[None]:
    """Errors of a full disk, in words. What was written in part is not relied on."""
    try:
        yield
    except Exception as error:
        if not is_full(error):
            raise
        raise FreeSpaceError(
            f"{where} could not be written: the disk is full ({error}). Nothing was released that "
            "is not saved and charged. Free some space and start again: the run goes on from its "
            "last whole checkpoint."
        ) from error


def is_full(error: BaseException | None) -> bool:
    """Whether an error, or one that caused it, says that there is no room."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return True
        if any(text in str(error).lower() for text in FULL_TEXTS):
            return True
        error = error.__cause__ or error.__context__
    return False
