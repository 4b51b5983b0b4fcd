"""A release is recorded, charged and published in this order, checked without a training run."""

import threading
from unittest import mock

import pytest

from bevel.errors import FixStorageError
from bevel.training import folder_run, releaser
from bevel.training.folder_run import FolderRun
from bevel.training.releaser import THREAD, Releaser
from bevel.training.resume import ReplayDiffersError

STATE, AFTER = object(), ["checksum"]


@pytest.fixture
def parts():
    """The parts of a run, which only record that they are called, and in which thread."""
    parts = mock.MagicMock()
    parts.ledger.attempt, parts.secrets.row_key, parts.ledger.epsilon.return_value = 0, b"key", 1.0
    parts.threads = {}

    def note(name):
        parts.threads[name] = threading.current_thread().name

    parts.checkpoints.stage.side_effect = lambda *_: note("stage")
    parts.ledger.release.side_effect = lambda *_: note("charge")
    parts.ledger.epsilon.side_effect = lambda *_: note("epsilon")
    parts.checkpoints.publish.side_effect = lambda *_: note("publish")
    return parts


@pytest.fixture
def run(parts, monkeypatch):
    """What releases a run of these parts, whose last release was step 2."""
    monkeypatch.setattr(releaser, "digest_of", lambda state: AFTER)
    made = Releaser(
        parts.folder,
        parts.plan,
        parts.secrets,
        None,
        ledger=parts.ledger,
        checkpoints=parts.checkpoints,
        releases=parts.releases,
        metrics=parts.metrics,
        check_in_place=parts.check_in_place,
    )
    made.last_published = (2, 0)
    yield made
    made.close()


def order(parts):
    """The names of the calls that write, in order."""
    names = [name for name, _, _ in parts.mock_calls]
    writes = ("stage", "wait", "add", "write_raw", "release", "publish", "write_metrics")
    return [name for name in names if name.rpartition(".")[2] in writes]


def hold(parts):
    """Lets the checkpoint be complete only once the returned event is set."""
    complete = threading.Event()
    parts.checkpoints.wait.side_effect = lambda: complete.wait(30)
    return complete


@pytest.mark.parametrize("evaluate", [None, dict])
def test_steps_are_charged_before_anything_of_them_is_shown(run, parts, evaluate):
    shown, complete = [], hold(parts)
    run.release(4, 2, STATE, [], ["row"], evaluate, shown.append)
    assert run.finish_release(if_ready=True) is None and not shown
    assert "ledger.release" not in order(parts)
    complete.set()
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
    assert [line["step"] for line in shown] == [4] and run.last_published == (4, 0)


def test_only_the_copy_of_the_arrays_is_made_in_the_thread_of_the_run(run, parts):
    run.release(4, 2, STATE, [], ["row"], None, lambda line: None)
    run.finish_release()
    own, others = parts.threads.pop("stage"), set(parts.threads.values())
    assert own == threading.current_thread().name and parts.threads.keys() >= {"charge", "epsilon"}
    assert len(others) == 1 and others.pop().startswith(THREAD)


def test_evaluation_runs_in_the_thread_of_the_run_once_its_steps_are_published(run, parts):
    seen = []

    def evaluate():
        seen.append((threading.current_thread().name, parts.checkpoints.publish.called))
        return {"accuracy": 0.5}

    run.release(4, 2, STATE, [], ["row"], evaluate, lambda line: None)
    assert run.finish_release()["accuracy"] == 0.5
    assert seen == [(threading.current_thread().name, True)]


def test_a_charge_that_fails_publishes_nothing_and_is_raised_in_the_thread_of_the_run(run, parts):
    parts.ledger.release.side_effect = OSError("disk full")
    run.release(4, 2, STATE, [], ["row"], dict, lambda line: None)
    with pytest.raises(OSError, match="disk full"):
        run.finish_release()
    assert not parts.checkpoints.publish.called and not parts.metrics.write_metrics.called


def test_the_next_release_waits_for_the_last_one_and_raises_its_error(run, parts):
    parts.ledger.release.side_effect = OSError("disk full")
    run.release(4, 2, STATE, [], ["row"], None, lambda line: None)
    with pytest.raises(OSError, match="disk full"):
        run.release(6, 4, STATE, [], ["row"], None, lambda line: None)
    assert order(parts).count("checkpoints.stage") == 1


def test_closing_completes_what_is_under_way_and_ends_the_thread(run, parts):
    complete = hold(parts)
    run.release(4, 2, STATE, [], ["row"], None, lambda line: None)
    threading.Timer(0.1, complete.set).start()
    assert run.close() is None
    assert parts.checkpoints.publish.called and run.last_published == (4, 0)
    assert not [t for t in threading.enumerate() if t.name.startswith(THREAD)]


def test_ctrl_c_while_closing_does_not_leave_the_thread_behind(run, parts, monkeypatch):
    complete, join, interrupted = hold(parts), threading.Thread.join, []

    def interrupt_once(thread, timeout=None):
        if thread.name.startswith(THREAD) and not interrupted:
            interrupted.append(thread)
            threading.Timer(0.1, complete.set).start()
            raise KeyboardInterrupt
        join(thread, timeout)

    monkeypatch.setattr(threading.Thread, "join", interrupt_once)
    run.release(4, 2, STATE, [], ["row"], None, lambda line: None)
    with pytest.raises(KeyboardInterrupt):
        run.close()
    assert parts.checkpoints.publish.called and not interrupted[0].is_alive()


def closed_run(parts, failure=None):
    """A run in a folder that ends, whose last release failed in this way unseen."""
    made = object.__new__(FolderRun)
    made.folder, made._lock, made.releaser = parts.folder, 7, parts.releaser
    made.ledger, made.checkpoints = parts.ledger, parts.checkpoints
    made._releases, made._metrics = parts.releases, parts.metrics
    parts.releaser.close.return_value = failure
    return made


def test_an_error_of_a_release_that_nobody_waited_for_is_not_lost(parts):
    with pytest.raises(OSError, match="disk full"), closed_run(parts, OSError("disk full")):
        pass
    with pytest.raises(KeyError), closed_run(parts, OSError("disk full")):
        raise KeyError("what ended the run")


def test_a_release_under_way_while_the_run_closes_still_looks_for_the_folder(parts, monkeypatch):
    checked = []
    monkeypatch.setattr(folder_run, "check_in_place", lambda lock, path: checked.append(lock))
    monkeypatch.setattr(folder_run, "keep_secrets", lambda path, secrets: None)
    run = closed_run(parts)
    run.run_secrets = parts.secrets
    parts.releaser.close.side_effect = run._check_in_place
    with run:
        pass
    assert checked == [7] and run._lock == -1


@pytest.mark.parametrize("failed", [True, False])
def test_closing_closes_everything_and_hides_no_error(parts, failed):
    parts.folder.reset_times.side_effect = FixStorageError("read-only")
    parts.metrics.close.side_effect = FixStorageError("read-only")
    run = closed_run(parts)
    with pytest.raises(KeyError if failed else FixStorageError), run:
        if failed:
            raise KeyError("what ended the run")
    for part in (parts.checkpoints, parts.metrics, parts.releases, parts.ledger):
        part.close.assert_called_once()
    parts.folder.unlock.assert_called_once_with(7)
    assert run._lock == -1


def test_an_interrupted_run_saves_its_state_and_releases_nothing(run, parts):
    run.keep_unreleased(3, 2, STATE, [], ["row"])
    assert order(parts) == ["checkpoints.stage", "metrics.write_raw", "checkpoints.wait"]


def test_a_repeated_step_with_another_result_is_not_even_staged(run, parts):
    run.replays = {4: ["another checksum"]}
    with pytest.raises(ReplayDiffersError):
        run.release(4, 2, STATE, [], ["row"], dict, lambda line: None)
    assert order(parts) == []
