"""The event and relations proven for each sampler, and what is rejected."""

import dp_accounting
import pytest
from samplers import SAMPLERS

from bevel.batch_selection import (
    BallsInBinsSampling,
    BMinSepSampling,
    CyclicPoissonSampling,
    PartitionType,
)
from bevel.batch_selection import proven_event as proven_module
from bevel.errors import FixArgumentsError

ADD, SPECIAL, ONE = "ADD_OR_REMOVE_ONE", "REPLACE_SPECIAL", "REPLACE_ONE"

TABLE = {
    "poisson": ("dpsgd_event", {ADD, SPECIAL, ONE}),
    "poisson_nothing": ("dpsgd_event", {ADD, SPECIAL, ONE}),
    "poisson_everything": ("dpsgd_event", {ADD, SPECIAL, ONE}),
    "truncated": ("truncated_dpsgd_event", {SPECIAL, ONE}),
    "cyclic": ("amplified_bandmf_event", {SPECIAL}),
    "cyclic_independent": ("amplified_bandmf_event", {ADD, SPECIAL, ONE}),
    "cyclic_truncated": ("truncated_amplified_bandmf_event", {SPECIAL}),
    "balls_in_bins": ("balls_in_bins_event", {ADD, SPECIAL}),
    "random_allocation": ("random_allocation_event", {ADD, SPECIAL}),
    "fixed": ("fixed_dpsgd_event", {ONE}),
    "fixed_replaced": ("fixed_dpsgd_event", set()),
    "min_sep": ("gaussian_event", {ADD, SPECIAL, ONE}),
    "min_sep_cold": ("gaussian_event", {ADD, SPECIAL, ONE}),
    "min_sep_truncated": ("gaussian_event", {SPECIAL, ONE}),
    "min_sep_one": ("gaussian_event", {ADD, SPECIAL, ONE}),
    "multi_owner": ("gaussian_event", {SPECIAL, ONE}),
}
REJECTED = {"cyclic_independent_truncated"}


def test_the_table_has_every_sampler():
    assert set(TABLE) | REJECTED == set(SAMPLERS)


@pytest.mark.parametrize("name", TABLE)
def test_event_and_relations(name):
    function, relations = TABLE[name]
    claimed = SAMPLERS[name].proven_event(40)
    assert claimed.function == function and set(claimed.relations) == relations


@pytest.mark.parametrize("name", sorted(set(SAMPLERS) - {"fixed_replaced"}))
def test_relations_without_amplification_are_those_of_the_selection(name):
    claimed = SAMPLERS[name].unamplified_event()
    assert claimed.function == "gaussian_event" and claimed.arguments == {"participations": 1}
    fixed_size = ("cyclic", "truncated", "fixed", "multi_owner", "min_sep_truncated")
    same_size = name.startswith(fixed_size) and name != "cyclic_independent"
    assert (ADD not in claimed.relations) == same_size
    assert {SPECIAL, ONE} <= set(claimed.relations)


def test_arguments_are_those_of_the_sampler():
    assert SAMPLERS["poisson"].proven_event(40).arguments == {
        "iterations": 12,
        "sampling_prob": 0.3,
    }
    assert SAMPLERS["cyclic_truncated"].proven_event(41).arguments == {
        "iterations": 12,
        "sampling_prob": 0.6,
        "num_bands": 3,
        "largest_group_size": 13,
        "truncated_batch_size": 4,
    }
    assert SAMPLERS["truncated"].proven_event(41).arguments["num_examples"] == 41
    assert SAMPLERS["fixed"].proven_event(40).arguments["dataset_size"] == 40
    assert SAMPLERS["min_sep"].proven_event(40).arguments == {"participations": 4}
    assert SAMPLERS["multi_owner"].proven_event(40).arguments == {"participations": 3}


def test_truncation_of_groups_of_random_size_has_no_event():
    with pytest.raises(FixArgumentsError, match="EQUAL_SPLIT"):
        SAMPLERS["cyclic_independent_truncated"].proven_event(40)
    with pytest.raises(FixArgumentsError, match="random sizes"):
        SAMPLERS["cyclic_independent"].group_size(40)


@pytest.mark.parametrize(
    "sampler, most",
    [
        (CyclicPoissonSampling(0.1, 20), 1),
        (CyclicPoissonSampling(0.1, 20, cycle_length=4), 4),
        (
            CyclicPoissonSampling(
                0.1, 20, cycle_length=4, partition_type=PartitionType.INDEPENDENT
            ),
            4,
        ),
        (BMinSepSampling(0.1, 20, 5), 5),
        (SAMPLERS["fixed"], 1),
        (SAMPLERS["random_allocation"], 1),
        (SAMPLERS["multi_owner"], 2),
    ],
)
def test_bands_that_reach_the_next_use_of_an_example_are_rejected(sampler, most):
    sampler.proven_event(40, num_bands=most)
    with pytest.raises(FixArgumentsError, match="no amplification is proven"):
        sampler.proven_event(40, num_bands=most + 1)
    with pytest.raises(FixArgumentsError, match="num_bands"):
        sampler.proven_event(40, num_bands=0)


def test_balls_in_bins_takes_any_matrix():
    claimed = BallsInBinsSampling(12, 4).proven_event(40, num_bands=12)
    assert claimed.takes_strategy


def test_the_names_are_those_of_dp_accounting():
    names = {relation.name for relation in dp_accounting.NeighboringRelation}
    assert set(proven_module.ALL_RELATIONS) == names
