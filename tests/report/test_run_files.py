import json
import shutil

import pytest

from bevel.errors import FixArgumentsError, RestoreLedgerError
from bevel.report.run_files import read_run
from bevel.training.folder import check_not_older


def test_reads_what_is_for_everyone(by_hand, metric_lines, raw_lines):
    run = read_run(by_hand(metrics=metric_lines, raw=raw_lines))
    assert run.name == "by hand" and list(run.metrics) == metric_lines and run.last_step == 10
    assert run.private is run.private_record is run.raw is None
    assert run.ledger.runs == ("by hand",)


def test_private_files_are_opened_only_when_asked_for(by_hand, raw_lines):
    folder = by_hand(raw=raw_lines)
    run = read_run(folder, include_raw=True)
    assert list(run.raw) == raw_lines and run.private_record["status"] == "complete"
    for name in ("raw.jsonl", "run.json"):
        (folder / "private" / name).write_text("not JSON\n")
        read_run(folder)
        with pytest.raises(FixArgumentsError, match=rf"private/{name} cannot be read"):
            read_run(folder, include_raw=True)


def test_secrets_are_never_opened(by_hand):
    folder = by_hand()
    (folder / "private" / "secrets.json").unlink()
    (folder / "private" / "secrets.json").mkdir()  # opening it would fail
    assert read_run(folder, include_raw=True).raw == ()


def test_a_copy_of_what_was_released_is_enough(by_hand, metric_lines, tmp_path):
    copy = tmp_path / "copy"
    folder = by_hand(metrics=metric_lines)
    shutil.copytree(folder / "released", copy)
    run = read_run(copy)
    assert list(run.metrics) == metric_lines and run.ledger.runs == ("by hand",)
    with pytest.raises(FixArgumentsError, match=r"no raw figures.*leave out include_raw"):
        read_run(copy, include_raw=True)
    with pytest.raises(FixArgumentsError, match="pass the folder that contains released/"):
        read_run(folder / "released", include_raw=True)


def test_the_private_half_alone_is_refused(by_hand):
    folder = by_hand()
    with pytest.raises(
        FixArgumentsError, match=r"the private half of a run: pass the folder above"
    ):
        read_run(folder / "private")


@pytest.mark.parametrize("left", ["secrets.json", "raw.jsonl", "run.json"])
def test_the_older_layout_is_refused_whatever_was_removed(tmp_path, left):
    """Also a copy without its secrets: the checkpoints in it contain the noise."""
    record = {"name": "old", "ledger": "../all.jsonl"}
    if left == "run.json":
        record |= {"started": "2026-01-01T00:00:00+00:00", "status": "complete"}
    else:
        (tmp_path / left).write_text("{}")
    (tmp_path / "run.json").write_text(json.dumps(record))
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(FixArgumentsError, match="older version") as error:
        read_run(tmp_path)
    for said in ("contain the noise", "nothing in it may be shown", "a new run in another folder"):
        assert said in str(error.value)
    assert f'RunOptions(ledger="{tmp_path / "../all.jsonl"}")' in str(error.value)
    with pytest.raises(FixArgumentsError, match="Start a new run in another folder"):
        check_not_older(tmp_path)  # training says the same


def test_what_is_not_a_run_says_so(tmp_path):
    with pytest.raises(FixArgumentsError, match=r"does not exist: pass the folder of a run"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(FixArgumentsError, match=r"has no run\.json: it is not a run folder"):
        read_run(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(FixArgumentsError, match="is a file"):
        read_run(tmp_path / "file")
    (tmp_path / "released").mkdir()
    for text, message in (("{", "cannot be read"), ("[]", "not the record of a run")):
        (tmp_path / "released" / "run.json").write_text(text)
        with pytest.raises(FixArgumentsError, match=message):
            read_run(tmp_path)


def test_a_torn_line_is_left_out(by_hand, metric_lines):
    folder = by_hand(metrics=metric_lines)
    with (folder / "released" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1')
    assert len(read_run(folder).metrics) == len(metric_lines)


def test_a_ledger_may_lie_elsewhere_be_missing_but_not_be_damaged(by_hand):
    folder = by_hand(ledger="../../all.jsonl")
    ledger = folder.parent / "all.jsonl"
    assert read_run(folder).ledger.runs == ("by hand",)
    text = ledger.read_text()
    ledger.unlink()
    assert read_run(folder).ledger is None
    ledger.write_text(text.replace("0.01", "0.02"))
    with pytest.raises(RestoreLedgerError):
        read_run(folder)
