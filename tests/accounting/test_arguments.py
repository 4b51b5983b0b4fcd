"""Invalid budgets and numbers are refused, with a message that says what to write."""

import math
import warnings

import dp_accounting
import numpy as np
import pytest

from bevel.accounting.arguments import check_budget, checked_noise, relation_of
from bevel.checks import probability, whole_number
from bevel.errors import FixArgumentsError


def test_a_valid_budget_gives_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_budget(3.0, 1e-5, 60_000)
        check_budget(np.float32(1), np.float64(0.5))
        check_budget(delta=1e-5, num_examples=100_000)


@pytest.mark.parametrize("epsilon", [0, -1, math.inf, math.nan, "3", True])
def test_epsilon_is_positive(epsilon):
    with pytest.raises(FixArgumentsError, match="epsilon="):
        check_budget(epsilon, 1e-5)


@pytest.mark.parametrize("delta", [0, 1, -1e-5, 1.5, math.nan, "1e-5", True])
def test_delta_is_between_zero_and_one(delta):
    with pytest.raises(FixArgumentsError, match="delta="):
        check_budget(3.0, delta)


def test_a_delta_above_one_over_n_gives_a_warning():
    with pytest.warns(UserWarning, match="larger than 1 / 1000"):
        check_budget(3.0, 2e-3, 1000)


def test_relations():
    for relation in dp_accounting.NeighboringRelation:
        assert relation_of(relation) is relation and relation_of(relation.name) is relation
    for wrong in ("replace", None, 2):
        with pytest.raises(FixArgumentsError, match="REPLACE_SPECIAL"):
            relation_of(wrong)


def test_numbers():
    assert checked_noise(0) == 0.0 and whole_number("k", 3) == 3
    assert probability("p", 1) == 1.0
    for wrong in (-1, math.nan, math.inf, None, True):
        with pytest.raises(FixArgumentsError, match="noise_multiplier"):
            checked_noise(wrong)
    for wrong in (0, 1.5, True, None):
        with pytest.raises(FixArgumentsError, match="k="):
            whole_number("k", wrong)
    for wrong in (-0.1, 1.1, math.nan, None, True):
        with pytest.raises(FixArgumentsError, match="p="):
            probability("p", wrong)
