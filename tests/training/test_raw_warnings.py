"""Each thing that looks wrong in raw metrics is said once, in words."""

import math

import pytest

from bevel.training.raw_warnings import STRETCH, RawWarnings

GOOD = {
    "batch_size": 10,
    "not_finite": 0,
    "clip_norm": 0.5,
    "clipped_fraction": 0.6,
    "signal_to_noise": 3.0,
}


def rows(count=STRETCH, **changed):
    return [GOOD | changed for _ in range(count)]


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"not_finite": 2}, "20 of the 100 gradients since the last checkpoint (0.2 of them)"),
        ({"clipped_fraction": 1.0}, "100.0% of the gradients of 10 steps are longer than the clip"),
        ({"clipped_fraction": 0.0}, "only 0.0% of the gradients of 10 steps are longer"),
        ({"signal_to_noise": 0.25}, "is 0.25 times as long as its noise"),
    ],
)
def test_a_warning_is_given_once(changed, said):
    warnings = RawWarnings()
    assert warnings.of(rows()) == []
    (text,) = warnings.of(rows(**changed))
    assert said in text
    assert warnings.of(rows(**changed)) == []


def test_clipping_and_noise_are_judged_over_a_stretch_of_steps():
    warnings = RawWarnings()
    for _ in range(STRETCH - 1):
        assert warnings.of(rows(1, clipped_fraction=1.0, signal_to_noise=0.5)) == []
    assert len(warnings.of(rows(1, clipped_fraction=1.0, signal_to_noise=0.5))) == 2


def test_an_example_that_is_not_finite_is_named_at_once():
    assert len(RawWarnings().of(rows(1, not_finite=1))) == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"clip_norm": math.inf, "clipped_fraction": 0.0, "signal_to_noise": math.inf},
        {"clipped_fraction": math.nan, "signal_to_noise": math.nan, "batch_size": 0},
    ],
    ids=["no privacy", "empty batches"],
)
def test_what_says_nothing_is_no_reason_to_warn(changed):
    assert RawWarnings().of(rows(**changed)) == []


def test_a_clip_norm_that_adapts_is_left_to_do_so():
    changing = [GOOD | {"clip_norm": 0.1 * i, "clipped_fraction": 1.0} for i in range(1, 20)]
    assert RawWarnings().of(changing) == []


def test_no_steps_are_no_reason_to_warn():
    assert RawWarnings().of([]) == []
