"""The folder of a search is private where it must be, locked, and charged before anything else."""

import os

import pytest
import searches
from searches import of_trials, search

from bevel.accounting import Budget, Ledger
from bevel.errors import FixArgumentsError
from bevel.training.folder import NO_TIME
from bevel.tuning import TrialCount, selection_event
from bevel.tuning.search_folder import SearchFolder


def opened(root):
    plan = searches.config().make()
    event = selection_event(plan.dp_event, TrialCount(3.0))
    return SearchFolder(root, plan, event, Budget(9.0, searches.DELTA), searches.options())


def test_the_charge_is_on_disk_before_a_trial_and_only_once(tmp_path):
    for _ in range(2):
        with opened(tmp_path / "search") as folder:
            secrets = folder.begin({"space": "a"})
            ledger = Ledger.read(tmp_path / "search/released/ledger.jsonl")
            assert ledger.runs == ("search",) and ledger.line_count == 2
            assert not list((tmp_path / "search/private").glob("trials"))
    with opened(tmp_path / "search") as folder:
        assert folder.begin({"space": "a"}) == secrets


def test_two_searches_do_not_share_a_folder(tmp_path):
    with opened(tmp_path / "search"), pytest.raises(FixArgumentsError, match="is in use by"):
        opened(tmp_path / "search")


def test_scores_and_trials_are_for_the_owner_only(tmp_path, monkeypatch):
    of_trials(monkeypatch, 1)
    search(tmp_path / "search")
    private = tmp_path / "search/private"
    assert private.stat().st_mode & 0o777 == 0o700
    for path in (p for p in private.iterdir() if p.is_file()):
        assert path.stat().st_mode & 0o077 == 0, path
    released = sorted(os.listdir(tmp_path / "search/released"))
    assert released == ["checkpoints", "ledger.jsonl", "metrics.jsonl", "run.json"]


def test_scores_keep_all_their_bits(tmp_path):
    with opened(tmp_path / "search") as folder:
        folder.add_score(0, 0.1 + 0.2)
        folder.add_score(1, float("-inf"))
        assert folder.scores() == {0: 0.1 + 0.2, 1: float("-inf")}


def test_a_kill_leaves_nothing_in_the_released_half(tmp_path, monkeypatch):
    """Neither files of the process, nor a ledger that others cannot read, nor when it ended."""
    of_trials(monkeypatch, 1)
    folder = tmp_path / "search"
    with opened(folder) as begun, begun._opened_ledger():
        pass  # killed before the mode of the new ledger was set
    (folder / "released/.ledger.jsonl.begin-5f").write_text("")
    search(folder, options=searches.options(budget=Budget(9.0, searches.DELTA)))
    released = folder / "released"
    assert (released / "ledger.jsonl").stat().st_mode & 0o777 == 0o644
    for name in (".metrics.jsonl.77", ".run.json.77"):
        (released / name).write_text("")
    os.utime(released / "run.json")  # killed before times were set
    search(folder, options=searches.options(budget=Budget(9.0, searches.DELTA)))
    assert sorted(os.listdir(released)) == [
        "checkpoints",
        "ledger.jsonl",
        "metrics.jsonl",
        "run.json",
    ]
    assert {p.stat().st_mtime for p in (released, *released.iterdir())} == {NO_TIME}


def test_a_discarded_trial_is_gone_at_once(tmp_path, monkeypatch):
    """A part of it could neither go on nor begin again."""
    with opened(tmp_path / "search") as folder:
        trial = folder.trial(0)
        (trial / "private").mkdir(parents=True)
        (trial / "private/a").write_text("")
        with monkeypatch.context() as killed:
            killed.setattr(os, "unlink", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                folder.discard(0)
        assert not trial.exists()
        trial.mkdir()
        folder.discard(0)
        assert not (tmp_path / "search/private/discarded").exists()
