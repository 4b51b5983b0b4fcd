"""A release is recorded, charged and published in this order, checked without a training run."""

from unittest import mock

import pytest

from bevel.errors import FixStorageError
from bevel.training import folder_run
from bevel.training.folder_run import FolderRun
from bevel.training.resume import ReplayDiffersError
from bevel.training.stopwatch import Stopwatch

STATE, AFTER = object(), ["checksum"]


@pytest.fixture
def parts():
    """The parts of a run, which only record that they are called."""
    parts = mock.MagicMock()
    parts.ledger.attempt, parts.secrets.row_key = 0, b"key"
    return parts


@pytest.fixture
def run(parts, monkeypatch):
    """A run of these parts whose last release was step 2."""
    monkeypatch.setattr(folder_run, "digest_of", lambda state: AFTER)
    run = object.__new__(FolderRun)
    run.stopwatch = Stopwatch()
    run.folder, run.plan, run.checkpoints = parts.folder, parts.plan, parts.checkpoints
    run.ledger, run.run_secrets = parts.ledger, parts.secrets
    run._releases, run._metrics = parts.releases, parts.metrics
    run.environment, run.delta, run._pending = {}, None, None
    run._last_published, run._last_digest = (2, 0), []
    run._earlier_rows, run._replays, run._lock = [], {}, -1
    return run


def order(parts):
    """The names of the calls that write, in order."""
    names = [name for name, _, _ in parts.mock_calls]
    writes = ("stage", "wait", "add", "write_raw", "release", "publish", "write_metrics")
    return [name for name in names if name.rpartition(".")[2] in writes]


def test_steps_are_charged_before_anything_of_them_is_shown(run, parts):
    shown = []
    run.release(4, 2, STATE, [], ["row"], dict, shown.append)
    assert order(parts) == ["checkpoints.stage"] and not shown
    run.finish_release()
    assert order(parts) == [
        "checkpoints.stage",
        "metrics.write_raw",  # a complete checkpoint lets a run go on without these steps
        "checkpoints.wait",
        "releases.add",
        "ledger.release",
        "checkpoints.publish",
        "metrics.write_metrics",
    ]
    assert [line["step"] for line in shown] == [4]


def test_a_charge_that_fails_publishes_nothing(run, parts):
    parts.ledger.release.side_effect = OSError("disk full")
    run.release(4, 2, STATE, [], ["row"], dict, lambda line: None)
    with pytest.raises(OSError, match="disk full"):
        run.finish_release()
    assert not parts.checkpoints.publish.called and not parts.metrics.write_metrics.called


def test_an_interrupted_run_saves_its_state_and_releases_nothing(run, parts):
    run.keep_unreleased(3, 2, STATE, [], ["row"])
    assert order(parts) == ["checkpoints.stage", "metrics.write_raw", "checkpoints.wait"]


def test_a_repeated_step_with_another_result_is_not_even_staged(run, parts):
    run._replays = {4: ["another checksum"]}
    with pytest.raises(ReplayDiffersError):
        run.release(4, 2, STATE, [], ["row"], dict, lambda line: None)
    assert order(parts) == []


@pytest.mark.parametrize("failed", [True, False])
def test_closing_closes_everything_and_hides_no_error(run, parts, failed):
    parts.folder.reset_times.side_effect = FixStorageError("read-only")
    parts.metrics.close.side_effect = FixStorageError("read-only")
    run._lock = 7
    with pytest.raises(KeyError if failed else FixStorageError), run:
        if failed:
            raise KeyError("what ended the run")
    for part in (parts.checkpoints, parts.metrics, parts.releases, parts.ledger):
        part.close.assert_called_once()
    parts.folder.unlock.assert_called_once_with(7)
    assert run._lock == -1
