"""The table shows what is protected, how, and what the noise is relative to."""

import dataclasses

import pytest
from plans import CONFIGS, plan

from bevel.accounting import Budget
from bevel.accounting.rounding import shown_epsilon
from bevel.execution_plan.describe import plan_table


def rows(text):
    """The table as a dict, with folded lines joined."""
    found, last = {}, None
    for line in text.splitlines():
        if line.startswith("│"):
            name, value = (part.strip() for part in line.strip("│").split("│"))
            last = name or last
            found[last] = f"{found.get(last, '')} {value}".strip()
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_every_plan_has_a_table(name):
    made = plan(name)
    table = rows(str(made))
    assert table["unit of privacy"] == made.unit.name
    assert table["neighbouring relation"] == made.neighboring_relation.name
    assert type(made.mechanism.sampler).__name__ in table["sampler"].replace(" ", "")
    assert table["noise multiplier"].startswith(
        f"1.5, relative to the bound of one {made.unit.name}"
    )
    assert table["fingerprint"].replace(" ", "") == made.fingerprint()
    assert table["budget"] == "none: not calibrated"
    assert max(map(len, str(made).splitlines())) <= 80


def test_epsilons_under_every_relation_that_is_proven(capsys):
    made = plan("dpsgd")
    made.describe(delta=1e-3)
    table = rows(capsys.readouterr().out)
    absence, other = made.epsilon(delta=1e-3), plan("dpsgd_replace_one").epsilon(delta=1e-3)
    shown, shown_other = (f"{shown_epsilon(x)} at delta 0.001" for x in (absence, other))
    assert table["epsilon, ADD_OR_REMOVE_ONE"] == f"{shown} (of this plan)"
    assert table["epsilon, REPLACE_SPECIAL"] == shown
    assert table["epsilon, REPLACE_ONE"] == shown_other and other > absence


@pytest.mark.parametrize(
    ("name", "undefined"),
    [
        ("fixed", {"ADD_OR_REMOVE_ONE", "REPLACE_SPECIAL"}),
        ("bandmf", {"ADD_OR_REMOVE_ONE", "REPLACE_ONE"}),
        ("blt_cyclic", {"ADD_OR_REMOVE_ONE"}),
        ("balls_in_bins", {"REPLACE_ONE"}),
    ],
)
def test_relations_without_a_proof_are_not_defined(name, undefined):
    table = rows(plan_table(plan(name), 1e-3))
    found = {k.split()[-1] for k, v in table.items() if v == "not defined"}
    assert found == undefined


def test_what_was_bounded_by_sampling_is_not_sampled_again():
    made = dataclasses.replace(plan("balls_in_bins"), budget=Budget(9.0, 1e-7))
    table = rows(str(made))
    assert table["epsilon, ADD_OR_REMOVE_ONE"].startswith("at most 9 at delta 1e-07, by Monte")
    assert "plan.epsilon" in rows(plan_table(made, 1e-6))["epsilon, ADD_OR_REMOVE_ONE"]


def test_what_noise_is_relative_to():
    twice = rows(str(plan("dpsgd_replace_one")))
    assert twice["over the sensitivity"] == "0.75: the sensitivity is twice the bound"
    once = rows(str(plan("dpsgd")))
    assert once["over the sensitivity"] == "1.5: the sensitivity is the bound"
    assert "and the sensitivity of C, 2.10254" in rows(str(plan("blt")))["noise multiplier"]
    assert "and the column norm of C, 1.14564" in rows(str(plan("bandmf")))["noise multiplier"]
    assert rows(str(plan("blt")))["uses of one example"] == "at most 3, at least 4 steps apart"


def test_a_clip_norm_that_adapts_shows_its_count():
    table = rows(str(plan("dpsgd_adaptive")))
    assert "noise of 1.5 examples" in table["clip norm"]
    assert table["of the gradients alone"] == "1.73205"


def test_known_secrets_show():
    assert "nothing is protected" in rows(str(plan("dpsgd")))["secrets"]
    assert "secrets" not in rows(str(CONFIGS["dpsgd"].make()))


def test_a_budget_shows():
    made = dataclasses.replace(plan("dpsgd"), budget=Budget(3, 1e-5))
    table = rows(str(made))
    assert table["budget"] == "epsilon 3 at delta 1e-05"
    assert "at delta 1e-05" in table["epsilon, REPLACE_ONE"]
