import math

import pytest

from bevel.errors import FixArgumentsError
from bevel.report.baseline import read_baseline
from bevel.report.run_files import read_run


@pytest.fixture
def run(by_hand, metric_lines):
    return read_run(by_hand(metrics=metric_lines))


def test_metrics_of_the_same_name_are_compared(run):
    found = read_baseline({"test_accuracy": 0.97, "other": 1}, run)
    assert found.metrics == {"test_accuracy": 0.97} and found.value("test_loss") is None
    assert read_baseline(None, run).metrics == {}


def test_a_number_is_the_baseline_of_the_headline(run):
    assert read_baseline(0.97, run).metrics == {"test_accuracy": 0.97}


def test_a_run_without_noise_gives_its_last_metrics(run, by_hand, metric_lines):
    settings = {"plan.mechanism.noise_multiplier": None}
    folder = by_hand(metrics=metric_lines[:2], at="non-private", settings=settings)
    found = read_baseline(folder, run)
    assert found.metrics == {"test_accuracy": 0.4, "test_loss": 0.25}
    assert read_baseline(str(folder), run) == found


def test_a_private_run_is_refused(run, by_hand, metric_lines):
    settings = {"plan.mechanism.noise_multiplier": 1.5}
    folder = by_hand(metrics=metric_lines, at="private", settings=settings)
    with pytest.raises(FixArgumentsError, match=r"a private run, with the noise multiplier 1\.5"):
        read_baseline(folder, run)


def test_what_cannot_be_compared_is_refused(run, by_hand, tmp_path):
    with pytest.raises(FixArgumentsError, match=r"has the metrics 'f1', but the run 'by hand' has"):
        read_baseline({"f1": 0.5}, run)
    for value in (math.nan, math.inf, "0.9", True, None):
        with pytest.raises(FixArgumentsError, match=r"pass a finite number, such as 0\.97"):
            read_baseline({"test_accuracy": value}, run)
    with pytest.raises(FixArgumentsError, match="pass a finite number"):
        read_baseline(math.nan, run)
    with pytest.raises(FixArgumentsError, match="does not exist: pass the folder of a run"):
        read_baseline(tmp_path / "nowhere", run)
    with pytest.raises(FixArgumentsError, match="no metrics that a baseline could be compared"):
        read_baseline(0.9, read_run(by_hand(at="empty")))
