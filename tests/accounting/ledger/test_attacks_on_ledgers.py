"""Forged summaries, exchanged archives, and kills at every file operation of a compaction."""

import json
import subprocess
import sys
import time

import pytest

from bevel.accounting import Ledger
from bevel.accounting.ledger import locked_file, summary, totals
from bevel.accounting.ledger.hash_chain import START, line_of
from bevel.accounting.ledger.summary import Segment, Summary
from bevel.accounting.ledger.totals import event_counts
from bevel.errors import FixStorageError, RestoreLedgerError
from bevel.shipping.ledger_file import read_ledger

EVENT = {"kind": "GaussianDpEvent", "noise_multiplier": 8.0}
TERMS = {"unit": "example", "relation": "REPLACE_ONE"}
RUN = {"plan": "plan", "key": "a" * 64}


def charged(path, steps, compact=False, **options):
    """Charges steps, and returns the head."""
    with Ledger.open(path, **TERMS, **options) as ledger:
        run = ledger.run("run", **RUN)
        for step in steps:
            run.charge(step, step + 1, EVENT)
        if compact:
            ledger.compact()
        return ledger.head


def understated(path):
    """A summary that may come next in the chain, and says that one step was charged."""
    ledger = Ledger.read(path)
    counts = ledger._totals._counts
    counts[next(iter(counts))] = 1
    return line_of(ledger._summary().entry(), ledger.line_count, ledger.head)[0]


@pytest.fixture(name="paths")
def fixture_paths(tmp_path):
    return tmp_path / "ledger.jsonl", tmp_path / "anchor"


def test_a_summary_that_was_appended_after_the_anchored_line_is_checked(paths):
    path, anchor = paths
    head = charged(path, range(5), anchor=anchor)
    before = path.read_bytes()
    path.write_bytes(before + understated(path))
    assert len(Ledger.read(path)._totals.events()) == 1  # a summary is believed without an anchor
    with pytest.raises(RestoreLedgerError, match="line 7 states other totals"):
        charged(path, [], anchor=anchor)
    with pytest.raises(RestoreLedgerError, match="line 7 states other totals"):
        Ledger.read(path).check_head(head)
    path.write_bytes(before)
    charged(path, range(5, 7), anchor=anchor)
    Ledger.read(path).check_head(head)


@pytest.mark.parametrize("keep_archive", [False, True])
def test_a_forged_compaction_does_not_match_the_anchor(paths, keep_archive):
    path, anchor = paths
    head = charged(path, range(5), anchor=anchor)
    whole, summary = path.read_bytes(), understated(path)
    if keep_archive:
        path.with_name("ledger.jsonl.archive-6").write_bytes(whole)
    path.write_bytes(whole.splitlines(keepends=True)[0] + summary)
    problem = "line 7 states other totals" if keep_archive else "archive-6, which does not exist"
    with pytest.raises(RestoreLedgerError, match=problem):
        charged(path, [], anchor=anchor)
    with pytest.raises(RestoreLedgerError, match=problem):
        Ledger.read(path).check_head(head)


def test_a_hash_that_is_only_written_down_is_not_that_of_a_line(paths):
    """Lines before a summary are hashed in one go, so each may state any hash."""
    path, anchor = paths
    head = charged(path, range(3), anchor=anchor)
    lines = path.read_bytes().splitlines(keepends=True)
    ledger = Ledger.read(path)
    made_up = lines[1].replace(json.loads(lines[1])["hash"].encode(), b"d" * 64)
    last = made_up.replace(b"d" * 64, head.encode()).replace(b'"line":1', b'"line":3')
    body = [lines[0], made_up, made_up.replace(b'"line":1', b'"line":2'), last]
    segment = Segment()
    segment.add(b"".join(body))
    nothing = {"counts": {}, "keys": {}, "runs": {}}
    forged = Summary(ledger._hashes[0], segment.digest, nothing)
    path.write_bytes(b"".join([*body, line_of(forged.entry(), 4, head)[0]]))
    assert Ledger.read(path).spent(1e-5).epsilon == 0
    with pytest.raises(RestoreLedgerError):
        charged(path, [], anchor=anchor)
    with pytest.raises(RestoreLedgerError):
        Ledger.read(path).check_head(head)


def test_an_anchored_ledger_that_was_compacted_without_its_anchor_opens(paths):
    path, anchor = paths
    head = charged(path, range(5), anchor=anchor)
    charged(path, range(5, 8), compact=True)  # `bevel spent --compact` knows no anchor
    charged(path, range(8, 9), compact=True)
    charged(path, range(9, 12), anchor=anchor)
    Ledger.read(path).check_head(head)
    assert Ledger.read(path).released("run") == (0, 12)
    charged(path, range(12, 13), compact=True, anchor=anchor)
    assert Ledger.read(path, full=True).released("run") == (0, 13)


def test_summaries_up_to_the_anchor_save_the_work(paths, monkeypatch):
    path, anchor = paths
    monkeypatch.setattr(summary, "SMALLEST_GAP", 2000)
    charged(path, range(40), anchor=anchor)
    added = []
    real = totals.LedgerTotals.add
    monkeypatch.setattr(
        totals.LedgerTotals, "add", lambda self, entry: added.append(entry) or real(self, entry)
    )
    Ledger.open(path, **TERMS, anchor=anchor).close()
    assert len(added) < 10
    start = path.read_bytes().rfind(b'{"entry":{"header"')
    path.write_bytes(path.read_bytes()[: start + 50])  # the last summary is cut short
    added.clear()
    with pytest.warns(UserWarning, match="cut short"):
        Ledger.read(path)
    assert len(added) < 20  # of 40 charges


def test_an_archive_cannot_begin_with_a_summary_of_lines_that_nobody_has(paths):
    """A full read takes the lines before a summary from archives, and believes no summary there."""
    path, anchor = paths
    charged(path, range(5))
    header, *_ = path.read_bytes().splitlines(keepends=True)
    ledger, made_up = Ledger.read(path), understated(path)
    segment = Segment()
    segment.add(made_up, starts=True)
    counts = json.loads(made_up)["entry"]["totals"]
    second = Summary(ledger._hashes[0], segment.digest, counts)
    previous = json.loads(made_up)["hash"]
    path.write_bytes(header + line_of(second.entry(), 7, previous)[0])
    path.with_name("ledger.jsonl.archive-7").write_bytes(header + made_up)
    Ledger.read(path)  # believed without an anchor
    anchor.write_text(json.dumps({"head": ledger._hashes[0], "lines": 1}))
    for reading in (
        lambda: Ledger.read(path, full=True),
        lambda: read_ledger(path),
        lambda: charged(path, [], anchor=anchor),
        lambda: Ledger.read(path).check_head(ledger.head),
    ):
        with pytest.raises(RestoreLedgerError):
            reading()


@pytest.mark.parametrize(
    "change",
    [
        lambda totals: totals["counts"].update({"x": 1}),
        lambda totals: totals["counts"].update({key: -1 for key in totals["counts"]}),
        lambda totals: totals["counts"].update({key: "1" for key in totals["counts"]}),
        lambda totals: totals["counts"].clear(),
        lambda totals: totals["keys"].clear(),
        lambda totals: totals["runs"].clear(),
        lambda totals: totals["runs"]["run"].update(charged_until=2),
        lambda totals: totals["runs"]["run"].update(attempt_first="0"),
        lambda totals: totals["runs"]["run"].update(released_until=9),
        lambda totals: totals["runs"]["run"].update(contents={"01": ""}),
        lambda totals: totals["runs"]["run"].update(contents={"1": 5}),
        lambda totals: totals["runs"]["run"].update(more=1),
        lambda totals: totals["runs"]["run"]["last"].update(stop=7),
        lambda totals: totals["runs"]["run"]["last"].update(event={"kind": "Unknown"}),
    ],
)
def test_totals_that_no_ledger_has_are_refused_in_a_summary(paths, change):
    path, _ = paths
    charged(path, range(5))
    record = json.loads(understated(path))
    record["entry"]["totals"]["counts"] = Ledger.read(path)._totals.to_json()["counts"]
    change(record["entry"]["totals"])
    line = line_of(record["entry"], record["line"], record["previous"])[0]
    path.write_bytes(path.read_bytes() + line)
    with pytest.raises(RestoreLedgerError, match="states other totals"):
        Ledger.read(path)


def test_archives_of_another_ledger_are_refused(tmp_path):
    paths = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    for path, key in zip(paths, "ab", strict=True):
        with Ledger.open(path, **TERMS) as ledger:
            ledger.run("run", plan="plan", key=key * 64).charge(0, 1, EVENT)
            archive = ledger.compact()
    archive.replace(tmp_path / "one.jsonl.archive-2")
    with pytest.raises(RestoreLedgerError):
        Ledger.read(paths[0], full=True)


@pytest.mark.parametrize("number", ["6", "7", "-1", '"2"', "true", "1e999", "9" * 5000])
def test_an_archive_with_a_wrong_number_ends_in_an_error(paths, number):
    path, _ = paths
    charged(path, range(5), compact=True)
    archive = path.with_name("ledger.jsonl.archive-6")
    archive.write_bytes(archive.read_bytes().replace(b'"line":0', f'"line":{number}'.encode(), 1))
    with pytest.raises(RestoreLedgerError, match="does not begin with a line of a ledger"):
        Ledger.read(path, full=True)


def test_an_archive_is_never_replaced(paths):
    path, _ = paths
    charged(path, range(5))
    old = path.read_bytes()
    charged(path, range(5, 7), compact=True)
    path.write_bytes(old)
    archive = path.with_name("ledger.jsonl.archive-8")
    before = archive.read_bytes()
    with pytest.raises(RestoreLedgerError, match="archive-8 beside it holds 8 lines"):
        charged(path, range(5, 7), compact=True)
    archive.unlink()
    with Ledger.open(path, **TERMS) as ledger:
        run = ledger.run("run", plan="plan", key="a" * 64)
        for step in (5, 6):
            run.charge(step, step + 1, EVENT)
        archive.write_bytes(before)  # such as by a copy of a folder into this one
        with pytest.raises(RestoreLedgerError, match="archive-8 exists already"):
            ledger.compact()
    assert archive.read_bytes() == before
    path.unlink()
    with pytest.raises(RestoreLedgerError, match="there are archives of one"):
        charged(path, range(2))


def test_an_archive_can_be_read_by_those_who_may_read_the_ledger(paths):
    path, _ = paths
    charged(path, range(2))
    path.chmod(0o644)
    charged(path, range(2, 3), compact=True)
    assert path.with_name("ledger.jsonl.archive-4").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace(b'"stop":1}', b'"stop":2,"stop":1}', 1),
        lambda text: text.replace(b'"attempt":0', b'"attempt":-0', 1),
        lambda text: text.replace(b'"stop":1', b'"stop":1.0', 1),
        lambda text: text.replace(b'"noise_multiplier":8.0', b'"noise_multiplier":NaN', 1),
        lambda text: text.replace(b'"noise_multiplier":8.0', b'"noise_multiplier":8e999', 1),
        lambda text: text.replace(b'"line":1', b'"line":' + b"9" * 5000, 1),
        lambda text: text.replace(b'"line":1', b'"line":true', 1),
        lambda text: text.replace(b'"run":"run"', b'"run":"\xff"', 1),
        lambda text: text.replace(b'"run":"run"', b'"run":"r\\u0075n"', 1),
        lambda text: text.replace(b'"version":3', b'"version":2', 1),
        lambda text: text.replace(b'"version":3', b'"version":3.0', 1),
    ],
)
def test_lines_that_other_readers_could_read_differently_are_refused(paths, change):
    path, _ = paths
    charged(path, range(2))
    data = path.read_bytes()
    assert change(data) != data
    path.write_bytes(change(data))
    for full in (False, True):
        with pytest.raises(RestoreLedgerError):
            Ledger.read(path, full=full)


@pytest.mark.parametrize("field", ["stop", "first", "attempt"])
@pytest.mark.parametrize("value", [-1, 1.0, True, "1", None, float("inf")])
def test_numbers_of_a_rewritten_chain_are_checked(paths, field, value):
    path, _ = paths
    charged(path, [0])
    entries = [json.loads(line)["entry"] for line in path.read_bytes().splitlines()]
    entries[1][field] = value
    lines, previous = [], START
    try:
        for number, entry in enumerate(entries):
            text, previous = line_of(entry, number, previous)
            lines.append(text)
    except ValueError:
        return  # such a line cannot be written
    path.write_bytes(b"".join(lines))
    with pytest.raises(RestoreLedgerError):
        Ledger.read(path)


@pytest.mark.parametrize("name", ["ü", "\u202e", '"}\n{"entry":{"header":"', "\0", "\ud800"])
def test_names_cannot_break_out_of_their_line(paths, name):
    path, _ = paths
    with Ledger.open(path, **TERMS) as ledger:
        ledger.run(name, **RUN).charge(0, 1, EVENT)
        ledger.compact()
        ledger.run(name, **RUN).charge(1, 2, EVENT)
    for full in (False, True):
        ledger = Ledger.read(path, full=full)
        assert ledger.runs == (name,) and ledger.released(name) == (0, 2)


def test_time_is_linear_in_parts_and_releases(paths, monkeypatch):
    parts = [{"kind": "GaussianDpEvent", "noise_multiplier": 1.0 + k} for k in range(60_000)]
    start = time.process_time()
    assert len(event_counts({"kind": "ComposedDpEvent", "events": parts})) == 60_000
    assert time.process_time() - start < 5  # quadratic time would be above 10 s
    path, _ = paths
    monkeypatch.setattr(totals, "KEPT", 4)
    charged(path, range(50))
    assert len(Ledger.read(path)._totals.runs["run"].contents) <= 8


KILLS = """
import os, sys, fcntl
from pathlib import Path
from bevel.accounting import Ledger
from bevel.accounting.ledger import durable_files, locked_file

folder, EVENT = Path(sys.argv[1]), {"kind": "GaussianDpEvent", "noise_multiplier": 8.0}
path, anchor = folder / "ledger.jsonl", folder / "anchor"
TERMS = {"unit": "example", "relation": "REPLACE_ONE", "anchor": anchor}
charged, kill_at, finished = 0, 0, False

def opened():
    ledger = Ledger.open(path, **TERMS)
    return ledger, ledger.run("run", plan="plan", key="a" * 64)

def dying(real):
    def operation(*args, **kwargs):
        global left
        left -= 1
        if left < 0:
            os._exit(9)
        return real(*args, **kwargs)
    return operation

while not finished:
    ledger, run = opened()
    assert run.charged_until == charged, (kill_at, run.charged_until, charged)
    run.charge(charged, charged + 1, EVENT)
    ledger.close()
    charged += 1
    child = os.fork()
    if not child:
        ledger, run = opened()
        left = kill_at
        for name in ("open", "write", "fsync", "replace", "close", "pread", "ftruncate"):
            setattr(os, name, dying(getattr(os, name)))
        fcntl.flock = dying(fcntl.flock)
        ledger.compact()
        os._exit(0)
    finished = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    full = Ledger.read(path, full=True)
    assert full.released("run") == (0, charged), kill_at
    assert full.head == Ledger.read(path).head
    kill_at += 1
print(kill_at)
"""


def test_a_kill_at_any_file_operation_of_a_compaction_loses_nothing(tmp_path):
    command = [sys.executable, "-c", KILLS, str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    assert int(run.stdout) > 20, "the kills did not come at the operations of a compaction"


def test_a_compaction_that_fails_leaves_no_lock_behind(paths, monkeypatch):
    path, _ = paths
    charged(path, range(3))

    def failing(folder):
        raise OSError("no such device")

    with Ledger.open(path, **TERMS) as ledger:
        monkeypatch.setattr(locked_file, "sync_folder", failing)
        with pytest.raises(FixStorageError, match="no such device"):
            ledger.compact()
        monkeypatch.undo()
    charged(path, range(3, 5))
    assert Ledger.read(path, full=True).released("run") == (0, 5)


def test_a_run_that_waits_for_a_compacted_ledger_gets_it(paths):
    path, _ = paths
    command = (
        "import sys; from bevel.accounting import Ledger; print('here', flush=True);"
        "l = Ledger.open(sys.argv[1], unit='example', relation='REPLACE_ONE', wait=True);"
        "print(l.released('run'))"
    )
    with Ledger.open(path, **TERMS) as ledger:
        ledger.run("run", **RUN).charge(0, 1, EVENT)
        waiting = subprocess.Popen(
            [sys.executable, "-c", command, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert waiting.stdout is not None and waiting.stdout.readline() == "here\n"
        time.sleep(0.5)  # if it does not wait yet, it finds the new file
        ledger.compact()
        time.sleep(0.2)
        assert waiting.poll() is None
        ledger.run("run", **RUN).charge(1, 2, EVENT)
    assert waiting.communicate(timeout=60)[0] == "(0, 2)\n" and waiting.returncode == 0
