"""DP-SGD configs make samplers with the expected batch size."""

import dataclasses

import pytest
from plans import CONFIGS

import bevel
from bevel.batch_selection import (
    BallsInBinsSampling,
    CyclicPoissonSampling,
    FixedBatchSampling,
    RandomAllocationSampling,
)
from bevel.errors import FixArgumentsError
from bevel.execution_plan import DPSGDConfig


def test_the_first_example_of_the_documentation():
    plan = (
        bevel.DPSGDConfig.default(num_examples=60_000, expected_batch_size=1024, iterations=2_000)
        .calibrate(epsilon=3, delta=1e-5)
        .make()
    )
    assert 2.999 <= plan.epsilon() <= 3
    assert plan.mechanism.noise_multiplier == pytest.approx(1.2912, abs=1e-3)
    assert plan.clip.normalize_by == 1024


@pytest.mark.parametrize(
    ("name", "sampler"),
    [
        ("dpsgd", CyclicPoissonSampling(10 / 60, 12)),
        ("truncated", CyclicPoissonSampling(10 / 60, 12, 11)),
        ("fixed", FixedBatchSampling(10, 12)),
        ("balls_in_bins", BallsInBinsSampling(12, 6)),
        ("random_allocation", RandomAllocationSampling(2, 12)),
    ],
)
def test_samplers_have_the_expected_batch_size(name, sampler):
    assert CONFIGS[name].sampler() == sampler


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"expected_batch_size": 61}, "pass at most 60, the number of examples"),
        ({"expected_batch_size": 0}, "expected_batch_size=0"),
        ({"sampling": "shuffle"}, "sampling='shuffle'"),
        ({"sampling": "balls_in_bins", "expected_batch_size": 7}, "an integer"),
        ({"sampling": "random_allocation", "expected_batch_size": 7}, "an integer"),
        ({"sampling": "fixed", "expected_batch_size": 7.5}, "an integer"),
        ({"sampling": "fixed"}, "Relations with a proof: REPLACE_ONE"),
        ({"sampling": "fixed", "truncated_batch_size": 9}, "only Poisson batches"),
        ({"truncated_batch_size": 9}, "Relations with a proof: REPLACE_SPECIAL, REPLACE_ONE"),
        ({"normalize_by": 0.0}, "normalize_by=0.0"),
    ],
    ids=str,
)
def test_bad_fields_say_what_to_write(change, message):
    with pytest.raises(FixArgumentsError, match=message):
        dataclasses.replace(CONFIGS["dpsgd"], **change).make()


def test_default_takes_the_other_fields():
    config = DPSGDConfig.default(60, 10, 12, l2_clip_norm=2.0, normalize_by=5.0)
    assert (config.divisor(), config.l2_clip_norm) == (5.0, 2.0)
