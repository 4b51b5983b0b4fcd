"""The metadata of a checkpoint: damage is told apart from a disk that fails for a moment."""

import dataclasses
import errno
import json

import pytest
from file_faults import Fault, FileFaults

from bevel.errors import FixStorageError, RestoreCheckpointError
from bevel.training.checkpoint_metadata import (
    CheckpointMetadata,
    numbered_folders,
    read_metadata,
)

META = CheckpointMetadata(3, 0, "plan", "key", "head", ["sum"])


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "checkpoint.json"
    path.write_text(json.dumps(dataclasses.asdict(META)))
    assert read_metadata(tmp_path) == META
    assert META.public() == {"step": 3, "attempt": 0, "plan": "plan"}


@pytest.mark.parametrize("content", [None, b"", b"[]", b"null", b"{}", b"\xff", b"[" * 100_000])
def test_damaged_metadata_is_an_error(content, tmp_path):
    if content is not None:
        (tmp_path / "checkpoint.json").write_bytes(content)
    with pytest.raises(RestoreCheckpointError, match="cannot be read"):
        read_metadata(tmp_path)


def test_a_disk_that_fails_is_no_damage(tmp_path):
    (tmp_path / "checkpoint.json").write_text(json.dumps(dataclasses.asdict(META)))
    fault = Fault("open", "checkpoint.json", 1, errno.EIO)
    with FileFaults(tmp_path, fault), pytest.raises(FixStorageError, match="Check the disk"):
        read_metadata(tmp_path)
    assert read_metadata(tmp_path) == META


def test_only_numbers_are_steps(tmp_path):
    for name in ("4", "10", "007", "²", "x", "4.tmp"):
        (tmp_path / name).mkdir()
    assert numbered_folders(tmp_path) == [10, 4]
    assert numbered_folders(tmp_path / "none") == []
