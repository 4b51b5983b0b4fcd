import numpy as np
import pytest

from bevel.report.axis import Axis
from bevel.report.figure import MOST_POINTS, by_attempt, figure, flat, is_number, thinned
from bevel.report.line_chart import Series


def test_a_description_says_the_content_in_sentences():
    series = [
        Series("accuracy", [1, 2, 3], [0.5, 0.9, 0.8]),
        Series("rising", [1, 3], [0.25, 0.75]),
        Series("limit", [0, 3], [1.0, 1.0], dash=1),
    ]
    svg = figure("f", "Accuracy", "c", Axis("accuracy", 0, 1), series).svg
    for sentence in (
        "Line chart of accuracy against step.",
        "accuracy: from 0.5 at step 1 to 0.8 at step 3, between 0.5 and 0.9.",
        "rising: from 0.25 at step 1 to 0.75 at step 3.",
        "limit: 1.",
    ):
        assert sentence in svg


def test_a_legend_has_one_entry_per_label_and_none_for_a_single_label():
    lines = [Series("a", [0], [0.0]), Series("a", [1], [1.0]), Series("b", [0], [1.0])]
    assert [s.label for s in figure("f", "t", "c", Axis("y", 0, 1), lines).legend] == ["a", "b"]
    assert figure("f", "t", "c", Axis("y", 0, 1), lines[:2]).legend == ()


@pytest.mark.parametrize("count", [401, 1000, 100_003])
def test_thinning_keeps_peaks_order_and_ends(count):
    values = np.sin(np.arange(count) / 50.0)
    values[count // 2], values[count // 3] = 50.0, -50.0
    thin = thinned(Series("a", list(range(count)), list(values)))
    assert MOST_POINTS / 2 <= len(thin.x) <= MOST_POINTS
    assert max(thin.y) == 50 and min(thin.y) == -50
    assert thin.x[0] == 0 and thin.x[-1] == count - 1
    assert list(thin.x) == sorted(set(thin.x))
    assert [values[x] for x in thin.x] == list(thin.y)  # points of the series, not averages


def test_every_narrow_peak_survives_thinning():
    """Each of the windows between kept points has its extremes among them."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        values = rng.normal(size=5000)
        peak = rng.integers(5000)
        values[peak] = 10.0
        thin = thinned(Series("a", range(5000), list(values)), 100)
        assert peak in list(thin.x) and len(thin.x) <= 100


def test_short_series_are_kept():
    series = Series("a", range(400), [0.0] * 400)
    assert thinned(series) is series


def test_attempts_are_lines_of_their_own_and_share_the_points():
    lines = [{"step": s % 1000, "attempt": s // 1000, "v": float(s)} for s in range(4000)]
    series = by_attempt(lines, "v", "v")
    assert len(series) == 4 and sum(len(line.x) for line in series) <= MOST_POINTS
    assert [line.y[-1] for line in series] == [999, 1999, 2999, 3999]


def test_lines_without_a_number_are_left_out():
    lines = [{"step": 0, "v": 1.0}, {"step": 1, "v": None}, {"step": 2, "v": "x"}, {"step": 3}]
    (series,) = by_attempt([*lines, {"step": 4, "v": 2.0, "at": 9}], "v", "v")
    assert list(series.x) == [0, 4]
    (series,) = by_attempt([*lines, {"step": 4, "v": 2.0, "at": 9}], "v", "v", against="at")
    assert list(series.x) == [9] and list(series.y) == [2.0]


def test_nested_metrics_get_names_with_slashes():
    assert flat({"a": {"b": {"c": 1}, "d": 2}, "e": 3}) == {"a/b/c": 1, "a/d": 2, "e": 3}


def test_numbers_are_finite_and_fit_a_float():
    assert all(map(is_number, (0, -1.5, 10**300, np.float64(2.0))))
    odd = (
        True,
        None,
        "1",
        float("nan"),
        float("inf"),
        -float("inf"),
        10**400,
        [1],
        np.float64("nan"),
    )
    assert not any(map(is_number, odd))
