"""Arrays and numbers of a run folder are read with the names that traces show."""

import json

import ml_dtypes
import numpy as np
import pytest

from bevel.auditing.released_files import (
    Trace,
    checkpoint_arrays,
    files,
    is_real,
    numbers_of,
    other_arrays,
    raw_lines,
    released_numbers,
    shown,
)


@pytest.fixture(name="root")
def fixture_root(tmp_path):
    (tmp_path / "released" / "deep").mkdir(parents=True)
    return tmp_path


def test_arrays_of_files_have_the_names_of_their_entries(root):
    np.save(root / "released" / "a.npy", np.arange(3))
    np.savez(root / "released" / "deep" / "b.npz", x=np.ones(2), y=np.zeros(1))
    (root / "released" / "c.txt").write_text("text")
    found = [(shown(path, root), name) for path, name, _ in other_arrays(root / "released")]
    assert found == [("a.npy", "array"), ("deep/b.npz", "x"), ("deep/b.npz", "y")]
    assert len(files(root / "released")) == 3


def test_numbers_have_dotted_names_and_lines(root):
    (root / "released" / "a.json").write_text(json.dumps({"x": [1, {"y": 0.5}]}))
    (root / "released" / "b.jsonl").write_text('{"z": 1.5}\n{"z": 2.5}\n')
    found = [(path.name, name, x) for path, name, x in released_numbers(root)]
    assert found == [
        ("a.json", "x.1.y", 0.5), ("b.jsonl", "line 1: z", 1.5), ("b.jsonl", "line 2: z", 2.5)
    ]  # fmt: skip
    assert list(numbers_of(3)) == [] and list(numbers_of({"a": True})) == []


def test_a_folder_without_checkpoints_or_raw_values_is_empty(root):
    assert checkpoint_arrays(root / "released") == {} and raw_lines(root) == []


def test_low_precision_is_real():
    assert is_real(np.zeros(1, ml_dtypes.bfloat16)) and is_real(np.zeros(1, np.float16))
    assert not is_real(np.zeros(1, np.int32))


def test_the_text_of_a_trace():
    assert str(Trace("a.npz", "ring", "noise")) == "a.npz, ring: noise"
