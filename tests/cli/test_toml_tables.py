"""Values are set in a TOML file without touching anything else in it."""

import tomllib

import pytest

from bevel.cli.toml_tables import toml_text, with_tables
from bevel.errors import FixArgumentsError

BEFORE = """# my run
[data]
source = "x.npz"  # mine

[plan] # the budget
epsilon = 3  # agreed
steps=5

[run]
folder = "runs/x"
"""
VALUES = {"plan": {"epsilon": 2.5, "batch_size": 64.0, "delta": 1e-06, "steps": 7}}


def test_values_are_replaced_or_added_and_the_rest_is_kept():
    after = with_tables(BEFORE, {**VALUES, "optimizer": {"name": "sgd"}}, "c.toml")
    assert tomllib.loads(after) == {
        "data": {"source": "x.npz"},
        "plan": {"epsilon": 2.5, "batch_size": 64, "delta": 1e-6, "steps": 7},
        "run": {"folder": "runs/x"},
        "optimizer": {"name": "sgd"},
    }
    kept = ["# my run", 'source = "x.npz"  # mine', "[plan] # the budget"]
    for line in (*kept, "epsilon = 2.5  # agreed"):
        assert line in after.splitlines()
    assert with_tables(after, VALUES, "c.toml") == after


def test_lines_whose_value_stays_are_not_touched():
    assert with_tables(BEFORE, {"plan": {"epsilon": 3.0, "steps": 5}}, "c.toml") == BEFORE


def test_an_empty_file_gets_the_tables():
    assert with_tables("", VALUES, "c.toml") == toml_text(VALUES)
    assert toml_text(VALUES).splitlines() == [
        "[plan]", "epsilon = 2.5", "batch_size = 64", "delta = 1e-06", "steps = 7",
    ]  # fmt: skip


def test_a_file_that_is_not_toml_is_named():
    with pytest.raises(FixArgumentsError, match=r"c\.toml is not valid TOML"):
        with_tables("[plan", VALUES, "c.toml")


@pytest.mark.parametrize(
    "text",
    ["plan = {epsilon = 3}\n", "plan.epsilon = 3\n", '[plan]\nx = """\nepsilon = 3\n"""\n'],
)
def test_what_is_not_understood_is_not_changed(text):
    with pytest.raises(FixArgumentsError, match=r"c.toml does not have \[plan\].*not changed"):
        with_tables(text, VALUES, "c.toml")
