"""A proposal as text fits 80 columns, and says the same as its JSON."""

import json

from bevel.choosing import ChosenNumber, NoiseCurve, NoisePoint, Proposal, Request
from bevel.cli.plan_text import config_tables, effect_text, noise_text, proposal_json, proposal_text

POINTS = (
    NoisePoint(1_000_000, 4000, 0.9),
    NoisePoint(2_000_000, 2000, 1.2),
    NoisePoint(4_000_000, 1000, 1.0),
)
LONG = "a reason that is long enough to be wrapped more than once in a column of this width " * 2


def proposal(given=False, **request):
    choices = {
        name: ChosenNumber(value) if given else ChosenNumber(value, LONG)
        for name, value in {
            "epsilon": 3.0, "delta": 1e-9, "epochs": 40.0, "batch_size": 2_000_000,
            "steps": 2000, "clip_norm": 1.0, "learning_rate": 0.0625,
        }.items()
    }  # fmt: skip
    curve = NoiseCurve(POINTS, least=POINTS[-1].noise_over_run, epochs=40.0)
    made = Request(num_units=100_000_000, epsilon=3.0, **request)
    return Proposal(made, choices, curve, POINTS[1])


def test_text_fits_80_columns():
    text = proposal_text(proposal(parameters=10**9))
    assert max(map(len, text.splitlines())) <= 80
    assert "100,000,000 examples" in text
    assert "learning_rate = 0.0625" in text


def test_the_chosen_batch_is_marked_in_the_curve():
    lines = noise_text(proposal()).splitlines()
    assert [line.split()[1] for line in lines if line.startswith(" >")] == ["2,000,000"]
    bars = [line.count("#") for line in lines[-3:]]
    assert bars == sorted(bars, reverse=True) and bars[0] == 24 and bars[-1] == 0


def test_a_batch_between_those_of_the_curve_gets_a_line():
    made = proposal()
    point = NoisePoint(1_500_000, 3000, 1.0)
    lines = noise_text(Proposal(made.request, made.choices, made.curve, point)).splitlines()
    assert len(lines) == 4 + 4
    assert lines[5].startswith(" > 1,500,000")


def test_signal_to_noise_is_stated_if_the_parameters_are_known():
    known = proposal(parameters=10**6)
    assert f"at most {known.signal_to_noise:.2g} in one" in effect_text(known).replace("\n ", "")
    assert "--parameters" in effect_text(proposal())


def test_given_numbers_need_no_curve_and_nothing_to_copy():
    text = proposal_text(proposal(given=True))
    assert "[plan]" not in text and "Noise against" not in text


def test_the_tables_hold_what_the_optimizer_reads():
    assert config_tables(proposal())["optimizer"] == {
        "name": "sgd", "learning_rate": 0.0625, "momentum": 0.9,
    }  # fmt: skip
    assert config_tables(proposal(optimizer="dp_adam"))["optimizer"] == {
        "name": "dp_adam",
        "learning_rate": 0.0625,
    }


def test_json_has_the_curve_and_the_reasons():
    found = json.loads(json.dumps(proposal_json(proposal())))
    assert found["chosen"]["batch_size"] == 2_000_000
    assert len(found["curve"]) == 3
    assert found["choices"]["delta"] == {"value": 1e-9, "given": False, "reason": LONG}
    assert found["signal_to_noise"] is None
