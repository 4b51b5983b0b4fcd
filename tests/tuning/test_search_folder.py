"""The folder of a search is private where it must be, locked, and charged before anything else."""

import errno
import os
import shutil

import pytest
import searches
from file_faults import Fault, FileFaults
from searches import of_trials, search

from bevel.accounting import Budget, Ledger
from bevel.errors import BevelError, FixArgumentsError, RestoreCheckpointError, RestoreLedgerError
from bevel.training.folder import NO_TIME
from bevel.tuning import TrialCount, selection_event
from bevel.tuning.result import read_result
from bevel.tuning.search_folder import SearchFolder


def opened(root):
    plan = searches.config().make()
    event = selection_event(plan.dp_event, TrialCount(3.0))
    return SearchFolder(root, plan, event, Budget(9.0, searches.DELTA), searches.options(), 2)


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


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"3", b"{}", b'{"search": 3}', b"\xff", b"[" * 9999]
)
def test_a_damaged_record_is_told(tmp_path, content):
    root = tmp_path / "search"
    with opened(root) as folder:
        folder.begin({"space": "a"})
        folder.check_data("digest")
        folder.add_score(0, 1.0)
    for name, use in {
        "search.json": lambda folder: folder.begin({"space": "a"}),
        "ledger_head": lambda folder: folder.begin({"space": "a"}),
        "data": lambda folder: folder.check_data("digest"),
        "scores.json": lambda folder: folder.scores(),
    }.items():
        before = (root / "private" / name).read_bytes()
        (root / "private" / name).write_bytes(content)
        with opened(root) as folder:
            if (name, content) == ("scores.json", b"{}"):
                assert folder.scores() == {}
                continue
            with pytest.raises((RestoreCheckpointError, RestoreLedgerError)):
                use(folder)
        (root / "private" / name).write_bytes(before)


def test_a_damaged_result_is_told(tmp_path):
    (tmp_path / "released").mkdir()
    for content in (b"", b"{}", b'{"selected": 3}', b"\xff"):
        (tmp_path / "released" / "run.json").write_bytes(content)
        with pytest.raises(RestoreCheckpointError, match="is damaged"):
            read_result(tmp_path, {}, None)


def test_a_trial_that_is_removed_in_part_is_not_gone_on_with(tmp_path, monkeypatch):
    with opened(tmp_path / "search") as folder:
        trial = folder.trial(0)
        for name in ("released/ledger.jsonl", "private/secrets.json"):
            (trial / name).parent.mkdir(parents=True)
            (trial / name).write_text("")

        def killed(path):
            os.unlink(path / "private/secrets.json")
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(shutil, "rmtree", killed)
            folder.discard_trial(0)
        assert not trial.exists()
        trial.mkdir()
        folder.discard_trial(0)
        assert not (tmp_path / "search/private/discarded").exists()


def test_a_failed_operation_of_a_search_is_a_clear_error_and_loses_nothing(tmp_path, monkeypatch):
    of_trials(monkeypatch, 1)
    private = "search/private"
    for number, fault in enumerate(
        [
            Fault("mkdir", private, 1, errno.EROFS),
            Fault("flock", f"{private}/lock", 1, errno.ENOLCK),
            Fault("fsync", "search/released/ledger.jsonl", 1, errno.EIO),
            Fault("stat", "search/released/run.json", 1, errno.EIO),
            Fault("open", f"{private}/scores.json", 1, errno.EACCES),
            Fault("mkdir", f"{private}/best/2", 1, errno.ENOSPC),
            Fault("rename", f"{private}/best", 1, errno.EDQUOT),
        ]
    ):
        root = tmp_path / str(number)
        with FileFaults(root, fault) as log, pytest.raises(BevelError, match="start again"):
            search(root / "search")
        assert log.happened, fault
        result = search(root / "search")
        kinds = (root / "search/released/ledger.jsonl").read_text().count('"charge"')
        assert kinds == 1 and result.best is not None
