import pytest

from bevel.report.owner import dropped_examples, times, where_time_went
from bevel.report.run_files import read_run


def test_dropped_examples_are_a_warning_in_words(raw_lines):
    assert dropped_examples(raw_lines) is None and dropped_examples([]) is None
    rows = [
        row | {"batch_size": 12, "not_finite": 4 if row["step"] < 5 else 0} for row in raw_lines
    ]
    warning = dropped_examples(rows)
    assert warning.startswith("17% of the examples in the batches were dropped")
    assert "(20 of 120 in 5 of 10 steps)" in warning and "NaN or infinite" in warning


def test_dropped_examples_are_told_without_batch_sizes_too():
    assert dropped_examples([{"step": 0, "not_finite": 3}]).startswith("3 examples")
    assert dropped_examples([{"step": 0, "not_finite": None}]) is None


def test_parts_of_the_time_are_bars_with_their_shares(by_hand):
    parts = {"compiling": 6, "waiting_for_data": 0.5, "steps": 3, "checkpoints": 2, "epsilon": 0.5}
    run = read_run(by_hand(private={"seconds_by_part": parts}), include_raw=True)
    drawn = where_time_went(run)
    assert "compiling: 6 s, 50 %; waiting for data: 0.5 s, 4 %; steps: 3 s, 25 %" in drawn.svg
    assert "checkpoints and evaluation: 2 s, 17 %; computing ε: 0.5 s, 4 %" in drawn.svg
    assert drawn.caption.startswith("12 s since the run was last started")


@pytest.mark.parametrize("parts", [None, [], {}, {"steps": 0}, {"steps": "<b>"}, {"steps": None}])
def test_times_that_were_not_recorded_are_not_drawn(by_hand, parts):
    run = read_run(by_hand(private={"seconds_by_part": parts}), include_raw=True)
    assert where_time_went(run) is None


def test_times_say_what_is_missing(by_hand):
    private = {"started": None, "seconds": None, "finished": None}
    found = dict(times(read_run(by_hand(private=private), include_raw=True)))
    assert found["Began"] == "not recorded" and found["Ended"] == "not yet"
    assert found["Time since it was last started"] == "not recorded"
