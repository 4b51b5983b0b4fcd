"""Bad input is refused with a message that says what to write instead."""

import numpy as np
import pytest

from bevel.auditing import CanaryScoreAuditor
from bevel.auditing.arguments import (
    checked_delta,
    checked_fpr,
    checked_prevalence,
    checked_scores,
    checked_significance,
)
from bevel.errors import FixArgumentsError


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([], "must not be empty: pass the scores of at least one"),
        ([[1.0, 2.0]], r"have shape \(1, 2\), but must be one-dimensional"),
        (3.0, r"have shape \(\), but must be one-dimensional"),
        ([1.0, np.nan, np.nan], "must not contain NaN, but 2 of 3 are"),
        (["a", "b"], "are not numbers: pass a one-dimensional array"),
    ],
)
@pytest.mark.parametrize("name", ["in_canary_scores", "out_canary_scores"])
def test_bad_scores_are_refused(name, scores, message):
    good = {"in_canary_scores": [1.0], "out_canary_scores": [0.0]}
    with pytest.raises(FixArgumentsError, match=f"{name} {message}"):
        CanaryScoreAuditor(**good | {name: scores})


def test_integers_and_infinities_are_scores():
    assert checked_scores("scores", [1, -np.inf, np.inf]).dtype == np.float64


@pytest.mark.parametrize("value", [0, 1, -0.1, np.nan, True, "0.05", None])
def test_significance_is_a_probability(value):
    with pytest.raises(
        FixArgumentsError, match=r"significance=.* at least 1e-300 and below 1.*0\.05"
    ):
        checked_significance(value)


@pytest.mark.parametrize("value", [-1e-9, 1.1, np.nan, "1e-5", None])
def test_delta_is_from_0_to_1(value):
    with pytest.raises(FixArgumentsError, match=r"delta=.* must be between 0 and 1.*1e-5"):
        checked_delta(value)
    assert checked_delta(0) == 0 and checked_delta(1) == 1


@pytest.mark.parametrize("value", [-0.1, 1.5, [0.1, np.nan]])
def test_fpr_is_from_0_to_1(value):
    with pytest.raises(FixArgumentsError, match=r"fpr.* must be between 0 and 1: pass rates"):
        checked_fpr(value)


@pytest.mark.parametrize("value", [-0.1, 1.5, "half"])
def test_prevalence_is_from_0_to_1(value):
    with pytest.raises(FixArgumentsError, match=r"prevalence=.* must be between 0 and 1"):
        checked_prevalence(value)
