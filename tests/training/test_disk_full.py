"""Errors of a full disk are recognised, wherever they come from."""

import errno
import os

import pytest

from bevel.errors import FreeSpaceError
from bevel.training.disk_full import explain_full_disk, is_full


def test_errors_of_a_full_disk_are_explained(tmp_path):
    for number in (errno.ENOSPC, errno.EDQUOT):
        full = pytest.raises(FreeSpaceError, match=r"disk is full.*last complete checkpoint")
        with full, explain_full_disk(tmp_path):
            raise RuntimeError("save failed") from OSError(number, os.strerror(number))
    with pytest.raises(OSError, match="permission"), explain_full_disk(tmp_path):
        raise OSError(errno.EACCES, "permission")
    assert is_full(ValueError("RESOURCE_EXHAUSTED: write failed"))
    assert not is_full(None)
