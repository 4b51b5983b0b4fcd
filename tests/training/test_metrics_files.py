"""Metrics files: released and raw metrics are separate, lines are complete, JSON has no NaN."""

import dataclasses
import errno
import json
import stat

import numpy as np
import pytest
from file_faults import RANDOM, Fault, FileFaults

from bevel.errors import FixStorageError, FreeSpaceError
from bevel.training.folder import RunFolder
from bevel.training.metrics_files import JsonLines, MetricsFiles, read_lines, to_json


def halves(path):
    folder = RunFolder(path)
    folder.create()
    return folder


def test_a_torn_line_is_cut_off_and_the_next_one_is_whole(tmp_path):
    path = tmp_path / "lines"
    lines = JsonLines(path)
    lines.add({"step": 1}, {"step": 2})
    lines.close()
    with path.open("ab") as file:
        file.write(b'{"step": 3, "eps')
    assert [line["step"] for line in read_lines(path)] == [1, 2]
    lines = JsonLines(path)
    lines.add({"step": 3})
    lines.close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3]
    assert list(read_lines(tmp_path / "none")) == []


def test_a_write_that_fails_leaves_no_part_of_a_line(tmp_path):
    lines = JsonLines(tmp_path / "lines")
    lines.add({"step": 1})
    full = pytest.raises(FreeSpaceError, match=r"lines could not be written.*start again")
    with FileFaults(tmp_path, Fault("write", "lines", 1, errno.ENOSPC)), full:
        lines.add({"step": 2})
    lines.add({"step": 2})
    lines.close()
    assert [line["step"] for line in read_lines(tmp_path / "lines")] == [1, 2]


def test_a_removed_file_is_written_again_and_a_moved_one_is_an_error(tmp_path):
    path = tmp_path / "lines"
    lines = JsonLines(path, private=True)
    lines.add({"step": 1})
    path.unlink()
    with pytest.warns(UserWarning, match="lines was removed while a run wrote to it"):
        lines.add({"step": 2})
    assert [line["step"] for line in read_lines(path)] == [1, 2]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.rename(tmp_path / "moved")
    with pytest.raises(FixStorageError, match="was moved, removed or replaced"):
        lines.add({"step": 3})
    lines.close()
    assert not path.exists()


def test_events_that_cannot_be_written_are_an_error(tmp_path):
    pytest.importorskip("tensorboardX")
    records = MetricsFiles(halves(tmp_path))
    fault = Fault("fsync", "private/tensorboard/raw/*", 1, errno.ENOSPC)
    events = next((tmp_path / "private" / "tensorboard" / "raw").iterdir())
    fault = dataclasses.replace(fault, path=RANDOM.sub("*", str(events.relative_to(tmp_path))))
    with FileFaults(tmp_path, fault), pytest.raises(FreeSpaceError, match="tensorboard"):
        records.write_raw([{"step": 0, "loss": 3.0}])
    records.close()


@pytest.mark.parametrize(
    "value, written",
    [
        (float("nan"), None),
        (float("inf"), None),
        (np.float32(0.5), 0.5),
        (np.array([1.0, np.nan]), [1.0, None]),
        ({"a": (1, True, "x", None)}, {"a": [1, True, "x", None]}),
        (np.int64(3), 3),
    ],
)
def test_values_are_valid_json(value, written):
    assert to_json(value) == written
    json.dumps(to_json(value), allow_nan=False)


def test_a_step_is_written_once_for_each_attempt(tmp_path):
    for _ in range(2):
        records = MetricsFiles(halves(tmp_path), tensorboard=False)
        records.write_raw([{"step": 0}, {"step": 1}])
        records.write_metrics({"step": 2})
        records.write_raw([{"step": 1, "attempt": 1}])
        records.write_metrics({"step": 2, "attempt": 1})
        assert records.has_metrics(2, 1) and not records.has_metrics(3, 0)
        records.close()
    lines = list(read_lines(tmp_path / "released" / "metrics.jsonl"))
    assert lines == [{"step": 2}, {"step": 2, "attempt": 1}]
    raw = tmp_path / "private" / "raw.jsonl"
    steps = [(line["step"], line.get("attempt", 0)) for line in read_lines(raw)]
    assert steps == [(0, 0), (1, 0), (1, 1)]
    assert stat.S_IMODE(raw.stat().st_mode) == 0o600


def test_tensorboard_keeps_them_apart_too(tmp_path):
    pytest.importorskip("tensorboardX")
    records = MetricsFiles(halves(tmp_path))
    records.write_raw([{"step": 0, "loss": 3.0}])
    records.write_metrics({"step": 2, "epsilon": 1.0})
    records.close()
    events = tmp_path / "private" / "tensorboard"
    metrics = b"".join(path.read_bytes() for path in (events / "released").iterdir())
    raw = b"".join(path.read_bytes() for path in (events / "raw").iterdir())
    assert b"epsilon" in metrics and b"loss" not in metrics
    assert b"loss" in raw and b"epsilon" not in raw
    assert [path.name for path in (tmp_path / "released").iterdir()] == ["metrics.jsonl"]


def test_without_tensorboard_there_are_lines(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tensorboardX", None)
    records = MetricsFiles(halves(tmp_path))
    records.write_metrics({"step": 2})
    records.close()
    files = sorted(path.name for path in tmp_path.rglob("*.jsonl"))
    assert files == ["metrics.jsonl", "raw.jsonl"]
    assert not list(tmp_path.rglob("events*"))
