"""Options of the command line are checked like the keys of a config."""

import dataclasses

import pytest

from bevel.cli.config import Config, PlanTable
from bevel.cli.overrides import with_overrides
from bevel.errors import FixArgumentsError

CONFIG = Config(PlanTable(batch_size=8.0, steps=3, epsilon=2.0))


@pytest.mark.parametrize(
    "words, table, values",
    [
        (["--plan.batch-size=32"], "plan", {"batch_size": 32.0}),
        (["--plan.batch_size", "32", "--plan.steps=5"], "plan", {"batch_size": 32.0, "steps": 5}),
        (["--plan.epsilon", ".5"], "plan", {"epsilon": 0.5}),
        (["--plan.epsilon=none"], "plan", {"epsilon": None}),
        (["--plan.mechanism=none"], "plan", {"mechanism": "none"}),
        (["--mesh.axes=data=8"], "mesh", {"axes": "data=8"}),
        (["--data.tune"], "data", {"tune": True}),
        (["--data.tune=True"], "data", {"tune": True}),
        (["--data.no-tune"], "data", {"tune": False}),
        (["--data.source=12"], "data", {"source": "12"}),
        (["--model.widths", "3", "5"], "model", {"widths": (3, 5)}),
        (["--model.widths=3,5"], "model", {"widths": (3, 5)}),
        (["--model.widths=[3, 5]"], "model", {"widths": (3, 5)}),
        (["--run.accept", "loss", "optimizer.momentum"], "run",
         {"accept": ("loss", "optimizer.momentum")}),
    ],
)  # fmt: skip
def test_an_option_changes_its_key_only(words, table, values):
    expected = dataclasses.replace(getattr(CONFIG, table), **values)
    assert with_overrides(CONFIG, words) == dataclasses.replace(CONFIG, **{table: expected})


@pytest.mark.parametrize(
    "words, said",
    [
        (["--plan.stepz=2"], "there is no option --plan.stepz. Did you mean '--plan.steps'?"),
        (["--steps", "2"], "there is no option --steps. Did you mean '--plan.steps'?"),
        (["--qqq"], "there is no option --qqq. --help lists them all."),
        (["--plan.steps=two"], "--plan.steps is 'two': set it to an integer."),
        (["--plan.steps=2.5"], "--plan.steps is '2.5': set it to an integer."),
        (["--plan.steps"], "--plan.steps has no value: set it to an integer."),
        (["--plan.steps", "--data.tune"], "--plan.steps has no value"),
        (["--plan.steps", "2", "3"], "'3' follows --plan.steps 2, which takes one value"),
        (["--model.widths=3,x"], "--model.widths is 'x': set it to an integer."),
        (["--plan.mechanism=dpsdg"], "is 'dpsdg'. Did you mean 'dpsgd'? Use one of: dpsgd, bandmf"),
        (["--data.no-tune=1"], "--data.no-tune takes no value."),
        (["--data.tune=maybe"], "--data.tune is 'maybe': set it to true or false."),
        (["--plan.steps=none"], "--plan.steps is 'none': set it to an integer."),
        (["steps=3"], "'steps' is not an option: write one as --table.key=value"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_named_with_what_to_write(words, said):
    with pytest.raises(FixArgumentsError) as caught:
        with_overrides(CONFIG, words)
    assert said in str(caught.value)
