"""A memory-mapped file that became shorter is an error, and not a crash of the process."""

import mmap
import os

import numpy as np
import pytest

from bevel.errors import FixDataError
from bevel.training.data import source_of
from bevel.training.mapped_files import check_not_shorter

ROWS = 10_000


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.arange(ROWS * 4, dtype=np.float32).reshape(ROWS, 4))
    return path


@pytest.mark.parametrize("view", [lambda x: x, lambda x: x[1:], lambda x: np.asarray(x)[:, :2]])
def test_a_file_that_became_shorter_is_noticed_before_it_is_read(path, view):
    source = source_of({"x": view(np.load(path, mmap_mode="r"))})
    before = source.read(np.asarray([0, 5]))["x"]
    os.truncate(path, 4096)
    with pytest.raises(FixDataError, match=r"bytes now.*Restore the file.*start again"):
        source.read(np.asarray([0, 5]))
    np.save(path, np.arange(ROWS * 4, dtype=np.float32).reshape(ROWS, 4))
    assert np.array_equal(source.read(np.asarray([0, 5]))["x"], before)


def test_an_offset_counts(tmp_path):
    path = tmp_path / "raw"
    path.write_bytes(bytes(3 * mmap.ALLOCATIONGRANULARITY))
    mapped = np.memmap(path, np.uint8, "r", offset=2 * mmap.ALLOCATIONGRANULARITY + 8)
    check_not_shorter(mapped)
    os.truncate(path, 2 * mmap.ALLOCATIONGRANULARITY)
    with pytest.raises(FixDataError, match="bytes now"):
        check_not_shorter(mapped)


def test_arrays_in_memory_have_no_file():
    check_not_shorter(np.arange(3))
    check_not_shorter(np.frombuffer(mmap.mmap(-1, 64), np.uint8))
