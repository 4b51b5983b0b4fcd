"""Errors of a full disk are said to be that, wherever they come from."""

import errno
import os

import pytest

from bevel.errors import FreeSpaceError
from bevel.training.disk_full import full_disk_explained, is_full


def test_a_full_disk_is_said_to_be_one(tmp_path):
    for number in (errno.ENOSPC, errno.EDQUOT):
        full = pytest.raises(FreeSpaceError, match=r"disk is full.*last whole checkpoint")
        with full, full_disk_explained(tmp_path):
            raise RuntimeError("save failed") from OSError(number, os.strerror(number))
    with pytest.raises(OSError, match="permission"), full_disk_explained(tmp_path):
        raise OSError(errno.EACCES, "permission")
    assert is_full(ValueError("RESOURCE_EXHAUSTED: write failed"))
    assert not is_full(None)
