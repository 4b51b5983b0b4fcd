"""Performance flags: a seed is not one of them."""

import dataclasses

import pytest

from bevel.errors import FixArgumentsError
from bevel.execution_plan import PerformanceFlags


def test_a_seed_is_not_a_performance_flag():
    with pytest.raises(FixArgumentsError, match=r"PlanSecrets.for_tests"):
        PerformanceFlags(noise_seed=3)
    assert "noise_seed" not in {field.name for field in dataclasses.fields(PerformanceFlags)}


def test_flags_can_be_replaced_one_by_one():
    flags = dataclasses.replace(PerformanceFlags(microbatch_size=4), keep_batch_dim=True)
    assert (flags.microbatch_size, flags.keep_batch_dim) == (4, True)
