import json

import pytest

from bevel.errors import FixArgumentsError, RestoreLedgerError
from bevel.report.run_files import read_run


def test_reads_what_is_for_everyone(by_hand, metric_lines, raw_lines):
    run = read_run(by_hand(metrics=metric_lines, raw=raw_lines))
    assert run.name == "by hand" and list(run.metrics) == metric_lines and run.raw is None
    assert run.ledger.runs == ("by hand",)


def test_raw_records_are_opened_only_when_asked_for(by_hand, raw_lines):
    folder = by_hand(raw=raw_lines)
    assert list(read_run(folder, include_raw=True).raw) == raw_lines
    (folder / "raw.jsonl").write_text("not JSON\n")
    read_run(folder)
    with pytest.raises(FixArgumentsError, match=r"raw\.jsonl cannot be read"):
        read_run(folder, include_raw=True)


def test_what_is_no_run_says_so(tmp_path):
    with pytest.raises(FixArgumentsError, match=r"is not there: give the folder of a run"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(FixArgumentsError, match=r"has no run\.json, so it is no run"):
        read_run(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(FixArgumentsError, match="is a file"):
        read_run(tmp_path / "file")
    for text, message in (("{", "cannot be read"), ("[]", "not the record of a run")):
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(FixArgumentsError, match=message):
            read_run(tmp_path)


def test_a_torn_line_is_left_out(by_hand, metric_lines):
    folder = by_hand(metrics=metric_lines)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1')
    assert len(read_run(folder).metrics) == len(metric_lines)


def test_a_ledger_may_lie_elsewhere_be_missing_but_not_be_damaged(by_hand):
    folder = by_hand()
    (folder / "ledger.jsonl").rename(folder.parent / "all.jsonl")
    assert read_run(folder).ledger is None
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(record | {"ledger": "../all.jsonl"}))
    assert read_run(folder).ledger.runs == ("by hand",)
    damaged = (folder.parent / "all.jsonl").read_text().replace("0.01", "0.02")
    (folder.parent / "all.jsonl").write_text(damaged)
    with pytest.raises(RestoreLedgerError):
        read_run(folder)
