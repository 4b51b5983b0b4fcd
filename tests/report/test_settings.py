import pytest

from bevel.report.settings import change_rows, in_words, mechanism_in_words, setting_tables

DPSGD = {
    "plan.mechanism.sampler": "CyclicPoissonSampling",
    "plan.mechanism.sampler.sampling_prob": 0.3562978427279054,
    "plan.mechanism.sampler.cycle_length": 1,
    "plan.mechanism.noise_multiplier": 3.5476484417267877,
    "plan.mechanism.strategy": "Independent",
    "plan.clip.l2_clip_norm": 0.5,
    "optimizer.name": "sgd",
    "optimizer.learning_rate": 1.0,
    "optimizer.warmup": None,
    "model.kind": "conv",
    "model.widths": [8, 16],
    "data.source": "digits",
    "data.tune": False,
}


def record(**settings):
    return {
        "unit": "example",
        "relation": "ADD_OR_REMOVE_ONE",
        "steps": 100,
        "data": {"records": 1437, "expected_batch_size": 512.0, "padded_sizes": [558, 648]},
        "settings": DPSGD | settings,
    }


def test_a_plan_is_readable_rows():
    tables = {caption: dict(rows) for caption, rows in setting_tables(record())}
    assert list(tables) == ["Privacy mechanism", "Batches", "Optimizer", "Model", "Data"]
    privacy, batches = tables["Privacy mechanism"], tables["Batches"]
    assert privacy["mechanism"] == "DP-SGD: independent Gaussian noise at every step"
    assert privacy["noise multiplier"] == "3.54765" and privacy["clip norm"] == "0.5"
    assert privacy["neighbouring relation"] == "add or remove one"
    assert batches["sampling"] == "Poisson: every example joins each step independently"
    assert batches["sampling probability"] == "0.356298" and batches["steps"] == "100"
    assert batches["expected batch size"] == "512" and batches["batches padded to"] == "558, 648"
    assert "length of a cycle, in steps" not in batches
    assert tables["Optimizer"] == {"name": "sgd", "learning rate": "1"}
    assert tables["Model"] == {"kind": "conv", "widths": "8, 16"}
    assert tables["Data"] == {"source": "digits", "training records": "1437"}


@pytest.mark.parametrize(
    ("settings", "name", "value"),
    [
        ({"plan.mechanism.strategy": "Buffered"}, "mechanism", "BLT: "),
        ({"plan.mechanism.strategy": "Banded"}, "mechanism", "BandMF: "),
        ({"plan.mechanism.strategy": "New"}, "mechanism", "New"),
        ({"plan.mechanism.noise_multiplier": None}, "mechanism", "none: nothing is protected"),
        ({"plan.clip.adaptive.target_quantile": 0.5}, "clip norm adapts", "0.5"),
        ({"plan.mechanism.sampler": "BMinSepSampling"}, "sampling", "minimum separation"),
        ({"plan.mechanism.sampler": "Odd"}, "sampling", "Odd"),
        ({"plan.mechanism.sampler.cycle_length": 4}, "length of a cycle", "4"),
        ({"ema_decay": 0.9}, "EMA decay", "0.9"),
    ],
)
def test_other_plans_say_what_they_are(settings, name, value):
    rows = [row for _, rows in setting_tables(record(**settings)) for row in rows]
    (shown,) = [shown for label, shown in rows if label.split(",")[0] == name]
    assert shown.startswith(value)


def test_the_mechanism_in_a_few_words():
    assert mechanism_in_words(record()) == "DP-SGD"
    assert mechanism_in_words(record(**{"plan.mechanism.noise_multiplier": None})) == "no noise"
    assert mechanism_in_words({}) == "not recorded"


def test_records_without_settings_have_what_is_known():
    tables = {caption: dict(rows) for caption, rows in setting_tables({})}
    assert tables["Batches"]["steps"] == "not recorded" and "Privacy mechanism" not in tables


def test_values_are_written_for_readers():
    values = [True, False, 0.1, 1e-5, 512.0, [1, 2.5], "x", None, 7]
    shown = ["yes", "no", "0.1", "1e-05", "512", "1, 2.5", "x", "not set", "7"]
    assert [in_words(value) for value in values] == shown


def test_changes_have_both_values():
    assert change_rows([{"step": 4, "name": "a", "from": None, "to": 0.5}]) == [
        ["4", "a", "not set", "0.5"]
    ]
