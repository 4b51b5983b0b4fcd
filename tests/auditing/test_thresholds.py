"""Threshold strategies check their fields, and are values."""

import numpy as np
import pytest

from bevel.auditing import Bonferroni, Explicit, MultiSplit, Split, ThresholdStrategy
from bevel.auditing.thresholds import split_size, unknown_strategy
from bevel.errors import FixArgumentsError


def test_defaults():
    assert Split() == Split(threshold_estimation_frac=0.5, seed=None)
    assert MultiSplit() == MultiSplit(num_samples=100, threshold_estimation_frac=0.5, seed=None)
    assert Bonferroni() == Bonferroni() and Explicit(1.0) == Explicit(threshold=1.0)
    strategies = [Bonferroni(), Explicit(0), Split(), MultiSplit()]
    assert all(isinstance(strategy, ThresholdStrategy) for strategy in strategies)


@pytest.mark.parametrize("frac", [0, 1, -0.5, np.nan, "half"])
@pytest.mark.parametrize("strategy", [Split, MultiSplit])
def test_a_part_is_not_empty(strategy, frac):
    with pytest.raises(FixArgumentsError, match=r"threshold_estimation_frac=.* between 0 and 1"):
        strategy(threshold_estimation_frac=frac)


def test_other_fields_are_checked():
    with pytest.raises(FixArgumentsError, match="num_samples=0: pass an integer of at least 1"):
        MultiSplit(num_samples=0)
    with pytest.raises(FixArgumentsError, match="seed=-1: pass an integer of at least 0"):
        Split(seed=-1)
    with pytest.raises(FixArgumentsError, match="threshold=nan: pass a number"):
        Explicit(np.nan)


@pytest.mark.parametrize(("frac", "size"), [(0.5, 5), (0.01, 1), (0.99, 9)])
def test_both_parts_have_a_canary(frac, size):
    assert split_size(frac, 10) == size


def test_unknown_strategies_are_named():
    with pytest.raises(FixArgumentsError, match=r"threshold_strategy='best': pass Bonferroni\(\)"):
        raise unknown_strategy("best")
