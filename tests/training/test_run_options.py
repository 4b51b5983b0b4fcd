"""Options of a run are checked when they are created, before anything is charged."""

import pytest

from bevel.accounting import Budget
from bevel.errors import FixArgumentsError
from bevel.training import RunOptions


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"checkpoint_every": 0}, "an integer"),
        ({"keep": True}, "an integer"),
        ({"keep_period": 0}, "keep_period=0"),
        ({"ahead": 1.5}, "an integer"),
        ({"delta": 1.5}, "between 0 and 1"),
        ({"delta": 0.0}, "between 0 and 1"),
        ({"budget": 3.0}, r"Budget\(epsilon, delta\)"),
        ({"name": ""}, "not empty"),
        ({"settings": ["a"]}, "dict of names"),
        ({"progress": "yes"}, r"pass True, False, or a bevel\.training\.Progress"),
        ({"accept": "loss"}, "list of names"),
        ({"accept": ["data"]}, "cannot change within a run"),
    ],
)
def test_wrong_options_are_refused_at_once(wrong, said):
    with pytest.raises(FixArgumentsError, match=said):
        RunOptions(**wrong)


def test_right_ones_are_kept():
    options = RunOptions(delta=1e-5, budget=Budget(3, 1e-5), keep_period=10, accept=["loss"])
    assert options.keep_period == 10 and options.settings == {}
