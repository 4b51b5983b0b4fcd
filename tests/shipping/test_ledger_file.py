"""A ledger, whole and as it was before."""

import pytest

from bevel.accounting import Ledger, dpsgd_event
from bevel.errors import FixArgumentsError
from bevel.shipping.ledger_file import read_ledger


@pytest.fixture(name="path")
def fixture_path(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with Ledger.open(path, unit="example", relation="ADD_OR_REMOVE_ONE") as ledger:
        a, b = (ledger.run(name, plan="p", key=f"{ord(name):064x}") for name in "ab")
        for run, step in ((a, 0), (a, 1), (b, 0), (a, 2)):
            run.charge(step, step + 1, dpsgd_event(1.0, 1, sampling_prob=0.1))
    return path


def test_lines_of_a_run_are_ranges_counted_from_one(path):
    ledger = read_ledger(path)
    assert ledger.lines_of("a") == [[2, 3], [5, 5]] and ledger.lines_of("b") == [[4, 4]]
    assert ledger.lines_of("c") == [] and ledger.data == path.read_bytes()


def test_a_ledger_up_to_a_line_is_what_it_was_then(path):
    ledger = read_ledger(path)
    then = ledger.up_to(3)
    assert then.event["count"] == 2 and ledger.event["count"] == 4
    assert [then.contents.hashes[k] for k in range(3)] == [
        ledger.contents.hashes[k] for k in range(3)
    ]
    assert then.epsilon(1e-5) < ledger.epsilon(1e-5) == Ledger.read(path).spent(1e-5).epsilon


def test_a_torn_line_does_not_count(path):
    complete = path.read_bytes()
    path.write_bytes(complete + b'{"entry":{"attempt":0')
    assert read_ledger(path).data == complete
    path.write_bytes(complete[:-1])  # lacks only its line feed
    assert read_ledger(path).data == complete


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FixArgumentsError, match="there is no ledger at"):
        read_ledger(tmp_path / "none")
