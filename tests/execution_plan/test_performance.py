"""Performance flags: a seed is accepted, for tests only."""

import dataclasses

import pytest
from plans import CONFIGS

from bevel.errors import FixArgumentsError
from bevel.execution_plan import PerformanceFlags, PlanSecrets


def test_a_noise_seed_warns_and_makes_a_plan_without_secrets():
    with pytest.warns(UserWarning, match="^Leave out noise_seed for real data"):
        plans = [CONFIGS["dpsgd"].make(PerformanceFlags(noise_seed=3)) for _ in range(2)]
    assert plans[0].secrets == plans[1].secrets == PlanSecrets.for_tests(3)
    assert not plans[0].noise_addition_transform.record.key_is_secret


def test_a_seed_does_not_replace_secrets():
    with pytest.raises(FixArgumentsError, match="both given"):
        CONFIGS["dpsgd"].make(PerformanceFlags(noise_seed=3), secrets=PlanSecrets.new())


def test_fields_have_the_order_of_jax_privacy():
    names = [field.name for field in dataclasses.fields(PerformanceFlags)]
    assert names[:3] == ["dtype", "noise_seed", "intermediate_strategy"]
    assert names[3:6] == ["microbatch_size", "spmd_axis_name", "keep_batch_dim"]


def test_flags_can_be_replaced_one_by_one():
    flags = dataclasses.replace(PerformanceFlags(microbatch_size=4), keep_batch_dim=True)
    assert (flags.microbatch_size, flags.keep_batch_dim) == (4, True)
