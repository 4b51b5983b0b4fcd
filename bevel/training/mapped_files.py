"""Notices that a memory-mapped file became shorter, before its missing part is read.

Reading it would end the process by SIGBUS, which Python cannot turn into an exception. If the file
is cut between this check and the read, that still happens, so never write to data that is in use.
"""

import mmap
from typing import Any

import numpy as np

from bevel.errors import FixDataError


def check_not_shorter(array: np.ndarray) -> None:
    """Raises if `array` is a view of a memory-mapped file that became shorter.

    It takes one call of the operating system for each array, whatever its size.
    """
    part: Any = array
    start = 0
    while isinstance(part, np.ndarray | memoryview):
        if isinstance(part, np.memmap):
            offset = part.offset or 0
            start = offset - offset % mmap.ALLOCATIONGRANULARITY
        part = part.obj if isinstance(part, memoryview) else part.base
    if not isinstance(part, mmap.mmap):
        return
    try:
        size = part.size()
    except (OSError, ValueError):  # memory without a file
        return
    if size < start + len(part):
        name = getattr(array, "filename", None) or "a memory-mapped file"
        raise FixDataError(
            f"{name} has {size} bytes now, but had at least {start + len(part)} when it was opened."
            " Restore the file, and do not write to it while a run reads it"
        )
