"""What a run tells is written in short, the most important first."""

import pytest

from bevel.accounting import Budget
from bevel.training import Progress
from bevel.training.progress import fitting, format_number, raw_part, released_parts

METRICS = {"step": 4, "epsilon": 1.25, "delta": 1e-5, "attempt": 0, "test_accuracy": 0.9}


def test_a_checkpoint_says_what_is_spent_of_the_budget():
    assert released_parts(METRICS, Budget(3, 1e-5)) == ["epsilon 1.25 of 3", "test accuracy 0.9"]
    assert released_parts(METRICS, None) == ["epsilon 1.25", "test accuracy 0.9"]
    assert released_parts(METRICS | {"epsilon": None, "name": "x"}, None) == ["test accuracy 0.9"]


def test_epsilon_is_never_shown_below_what_was_spent():
    spent = released_parts({"epsilon": 2.3101}, Budget(2.3102, 1e-5))
    assert spent == ["epsilon 2.32 of 2.32"]
    assert released_parts({"epsilon": float("inf")}, None) == ["epsilon unlimited"]


def test_raw_metrics_are_marked():
    assert raw_part({"loss": 0.5, "batch_size": 7}) == "not private: loss 0.5"
    assert raw_part({"batch_size": 7}) == ""


@pytest.mark.parametrize(
    "width, text", [(20, "aaaa, bbb, c"), (12, "aaaa, bbb, c"), (11, "aaaa, bbb"), (3, "aaa")]
)
def test_parts_that_do_not_fit_are_left_out(width, text):
    assert fitting(["aaaa", "bbb", "c"], width) == text


def test_the_base_class_accepts_everything_and_shows_nothing(capsys):
    progress = Progress()
    with progress.working("compiling"):
        progress.begin(0, 8, None)
        progress.advance(1)
        progress.checkpoint(METRICS)
        progress.raw({"loss": 1.0})
        progress.warn("look")
        progress.note("so it is")
        progress.end()
    assert capsys.readouterr().out == ""


def test_numbers_are_short():
    assert [format_number(x) for x in (0.12345, 12.0, 12345.6, None, float("inf"))] == [
        "0.123", "12", "12346", "-", "unlimited",
    ]  # fmt: skip
