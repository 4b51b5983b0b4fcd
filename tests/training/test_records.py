"""Two files that are never mixed; whole lines; no NaN in JSON."""

import json
import stat

import numpy as np
import pytest

from bevel.training.records import Lines, Records, plain, read_lines


def test_a_torn_line_is_cut_off_and_the_next_one_is_whole(tmp_path):
    path = tmp_path / "lines"
    lines = Lines(path)
    lines.add({"step": 1}, {"step": 2})
    lines.close()
    with path.open("ab") as file:
        file.write(b'{"step": 3, "eps')
    assert [line["step"] for line in read_lines(path)] == [1, 2]
    lines = Lines(path)
    lines.add({"step": 3})
    lines.close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3]
    assert list(read_lines(tmp_path / "none")) == []


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
    assert plain(value) == written
    json.dumps(plain(value), allow_nan=False)


def test_a_step_is_written_once_for_each_attempt(tmp_path):
    for _ in range(2):
        records = Records(tmp_path, tensorboard=False)
        records.release({"step": 2}, [{"step": 0}, {"step": 1}])
        records.release({"step": 2, "attempt": 1}, [{"step": 1, "attempt": 1}])
        assert records.released(2, 1) and not records.released(3, 0)
        records.close()
    assert list(read_lines(tmp_path / "metrics.jsonl")) == [{"step": 2}, {"step": 2, "attempt": 1}]
    raw = [(line["step"], line.get("attempt", 0)) for line in read_lines(tmp_path / "raw.jsonl")]
    assert raw == [(0, 0), (1, 0), (1, 1)]
    assert stat.S_IMODE((tmp_path / "raw.jsonl").stat().st_mode) == 0o600


def test_tensorboard_keeps_them_apart_too(tmp_path):
    pytest.importorskip("tensorboardX")
    records = Records(tmp_path)
    records.release({"step": 2, "epsilon": 1.0}, [{"step": 0, "loss": 3.0}])
    records.close()
    public = b"".join(path.read_bytes() for path in (tmp_path / "tensorboard").iterdir())
    raw_folder = tmp_path / "tensorboard_raw_not_private"
    raw = b"".join(path.read_bytes() for path in raw_folder.iterdir())
    assert b"epsilon" in public and b"loss" not in public
    assert b"loss" in raw and b"epsilon" not in raw


def test_without_tensorboard_there_are_lines(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tensorboardX", None)
    records = Records(tmp_path)
    records.release({"step": 2}, [])
    records.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "raw.jsonl"]
