"""The report says which of the four ways was used, and epsilon with tuning beside that without."""

import types

import pytest

from bevel.report.tuning import NOT_FOR_RELEASE, assumption, is_trial, tuning_rows
from bevel.training.tuning_record import GRID, PRIVATE_SELECTION, PUBLIC, TRIAL, WAYS

SPENT = types.SimpleNamespace(epsilon=3.2, delta=1e-5)


def record(way, **details):
    return {"tuning": {"way": way, "epsilon_of_one_trial": None, "trials": None} | details}


@pytest.mark.parametrize(
    "found, words",
    [
        ({}, "unknown: ε excludes tuning"),
        ({"tuning": None}, "unknown: ε excludes tuning"),
        (record("unknown"), "unknown: ε excludes tuning"),
        (record("of a later version"), "unknown: ε excludes tuning"),
        (record(PUBLIC), "chosen by theory, or on data that is not protected"),
        (record(GRID, trials="6 trials"), "a grid of 6 trials, all charged"),
        (record(PRIVATE_SELECTION, trials="a random number"), "the best of a random number"),
        (record(TRIAL), "must not be released"),
    ],
)
@pytest.mark.fast
def test_the_way_is_said_in_words(found, words):
    assert words in dict(tuning_rows(found, SPENT))["Tuning"]


@pytest.mark.parametrize("way", WAYS)
def test_epsilon_with_tuning_stands_beside_epsilon_without(way):
    rows = dict(tuning_rows(record(way, epsilon_of_one_trial=1.5), SPENT))
    both = rows.get("ε with tuning, and without")
    assert both == (
        "3.201, and 1.5 for one trial alone" if way in (GRID, PRIVATE_SELECTION) else None
    )


def test_other_runs_of_the_ledger_are_no_part_of_the_tuning():
    found = record(PRIVATE_SELECTION, epsilon_of_one_trial=1.5, epsilon=2.5)
    assert dict(tuning_rows(found, SPENT))["ε with tuning, and without"].startswith("2.5, and 1.5 ")


def test_the_assumptions_follow_from_the_way():
    assert "Runs that were used to choose settings" in assumption({})
    assert "their scores and their number are secret" in assumption(record(PRIVATE_SELECTION))
    assert is_trial(record(TRIAL)) and not is_trial({})
    assert "release the folder of the search" in NOT_FOR_RELEASE
