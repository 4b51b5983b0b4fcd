import pytest

from bevel.report.run_files import read_run
from bevel.report.status import ended_by_callback, status


@pytest.mark.parametrize(
    ("ending", "sentence"),
    [
        ("complete", "All steps of the plan were taken."),
        ("ended by the budget", "would have exceeded the budget"),
        ("ended by the callback", "the guarantee is the budget"),
        ("eaten", "does not know this status"),
    ],
)
def test_the_public_page_says_how_a_run_ended(by_hand, ending, sentence):
    pill, said = status(read_run(by_hand(ending=ending)))
    assert pill == ending and sentence in said


def test_before_its_end_the_public_page_counts_what_was_released(by_hand, metric_lines):
    run = read_run(by_hand(metrics=metric_lines[:2], ending=None, private={"status": "running"}))
    assert status(run) == (
        "4 of 10 steps released so far",
        "The run has not ended: more steps may follow.",
    )
    assert status(read_run(by_hand(at="b", ending=None)))[0] == "no steps released so far"


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        ("running", "still running, or it was killed"),
        ("interrupted", "continues from its last checkpoint"),
        ("complete", "All steps of the plan were taken."),
    ],
)
def test_the_owner_sees_the_status(by_hand, found, sentence):
    folder = by_hand(ending=None, private={"status": found})
    pill, said = status(read_run(folder, include_raw=True))
    assert pill == found and sentence in said
    assert found not in " ".join(status(read_run(folder)))


def test_without_a_private_status_the_owner_sees_the_public_one(by_hand):
    folder = by_hand(ending="complete", private={"status": None})
    assert status(read_run(folder, include_raw=True))[0] == "complete"


def test_a_callback_is_found_in_either_half(by_hand):
    assert ended_by_callback(read_run(by_hand(ending="ended by the callback")))
    folder = by_hand(at="b", ending=None, private={"status": "ended by the callback"})
    assert ended_by_callback(read_run(folder, include_raw=True))
    assert not ended_by_callback(read_run(folder))
