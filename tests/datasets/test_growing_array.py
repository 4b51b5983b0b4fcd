"""Rows that do not fit into memory are in a file without a name."""

import os

import numpy as np
import pytest

from bevel.datasets.growing_array import GrowingArray


@pytest.mark.parametrize("limit", [0, 50, 1 << 20])
def test_rows_come_back_in_order(limit):
    rows = np.arange(60, dtype=np.float32).reshape(20, 3)
    growing = GrowingArray((3,), np.float32, limit)
    for start, stop in ((0, 7), (7, 7), (7, 13), (13, 20)):
        growing.append(rows[start:stop])
    found = growing.array()
    np.testing.assert_array_equal(found, rows)
    assert isinstance(found, np.memmap) == (limit < rows.nbytes)


def test_no_file_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    growing = GrowingArray((), np.int64, 10)
    growing.append(np.arange(1000))
    found = growing.array()
    assert isinstance(found, np.memmap)
    assert os.listdir(tmp_path) == []
    assert found[999] == 999


def test_nothing_appended_is_an_empty_array():
    assert GrowingArray((3,), np.float32).array().shape == (0, 3)
