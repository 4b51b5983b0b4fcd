"""Events of samplers: only proven ones are built, with the numbers of the sampler."""

import functools

import dp_accounting
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from samplers import SAMPLERS

from bevel.accounting import (
    amplified_bandmf_event,
    balls_in_bins_event,
    dpsgd_event,
    epsilon,
    event_of,
    fixed_dpsgd_event,
    gaussian_event,
    random_allocation_event,
    truncated_amplified_bandmf_event,
    truncated_dpsgd_event,
    unamplified_event_of,
)
from bevel.accounting.monte_carlo import MonteCarlo
from bevel.accounting.sampler_event import num_bands
from bevel.batch_selection import (
    BMinSepSampling,
    CyclicPoissonSampling,
    PartitionType,
    UserSelectionStrategy,
)
from bevel.errors import FixArgumentsError

N, NOISE = 40, 2.0
EXPECTED = {
    "poisson": dpsgd_event(NOISE, 12, sampling_prob=0.3),
    "truncated": truncated_dpsgd_event(
        NOISE, 12, sampling_prob=0.3, num_examples=N, truncated_batch_size=5
    ),
    "cyclic": amplified_bandmf_event(NOISE, 12, num_bands=3, sampling_prob=0.6),
    "cyclic_independent": amplified_bandmf_event(NOISE, 12, num_bands=3, sampling_prob=0.6),
    "cyclic_truncated": truncated_amplified_bandmf_event(
        NOISE,
        12,
        num_bands=3,
        sampling_prob=0.6,
        largest_group_size=13,
        truncated_batch_size=4,
    ),
    "balls_in_bins": balls_in_bins_event(NOISE, 12, cycle_length=5),
    "random_allocation": random_allocation_event(NOISE, 12, total_participations=3),
    "fixed": fixed_dpsgd_event(NOISE, 12, dataset_size=N, batch_size=4),
    "min_sep": gaussian_event(NOISE, 4),
    "min_sep_truncated": gaussian_event(NOISE, 4),
    "multi_owner": gaussian_event(NOISE, 3),
}


@pytest.mark.parametrize("relation", NeighboringRelation)
@pytest.mark.parametrize("name", EXPECTED)
def test_every_sampler_under_every_relation(name, relation):
    sampler = SAMPLERS[name]
    if relation.name not in sampler.proven_event(N).relations:
        with pytest.raises(FixArgumentsError, match=f"under {relation.name}: no guarantee"):
            event_of(sampler, NOISE, num_examples=N, neighboring_relation=relation)
        return
    event = event_of(sampler, NOISE, num_examples=N, neighboring_relation=relation)
    assert event == EXPECTED[name]
    # Every proven event has an accountant and a finite cost.
    samples = MonteCarlo(20_000, 1e-4, 0)
    coarse = functools.partial(PLDAccountant, value_discretization_interval=1e-3)
    cost = epsilon(
        event,
        delta=1e-2,
        neighboring_relation=relation,
        accountant_fn=coarse if "truncated" in name else None,
        monte_carlo=samples,
    )
    assert 0 < cost < 20


@pytest.mark.parametrize("relation", NeighboringRelation)
def test_a_sampler_without_a_proof_has_no_event(relation):
    with pytest.raises(FixArgumentsError, match="Relations with a proof: none"):
        event_of(SAMPLERS["fixed_replaced"], NOISE, num_examples=N, neighboring_relation=relation)
    with pytest.raises(FixArgumentsError, match="EQUAL_SPLIT"):
        event_of(
            SAMPLERS["cyclic_independent_truncated"],
            NOISE,
            num_examples=N,
            neighboring_relation=relation,
        )


def test_users_have_the_event_of_their_sampler():
    users = UserSelectionStrategy(SAMPLERS["truncated"], 3)
    event = event_of(users, NOISE, num_examples=N, neighboring_relation="REPLACE_SPECIAL")
    assert event == EXPECTED["truncated"]


def test_the_matrix_decides_what_is_proven():
    options = {"num_examples": N, "neighboring_relation": "REPLACE_SPECIAL"}
    bands = (1.0, 0.5, 0.25)
    assert event_of(SAMPLERS["cyclic"], NOISE, strategy=bands, **options) == EXPECTED["cyclic"]
    for name in ("poisson", "truncated", "random_allocation"):
        with pytest.raises(FixArgumentsError, match="no amplification is proven"):
            event_of(SAMPLERS[name], NOISE, strategy=bands, **options)
    event = event_of(SAMPLERS["balls_in_bins"], NOISE, strategy=bands, **options)
    assert event == balls_in_bins_event(NOISE, 12, cycle_length=5, strategy=bands)


@pytest.mark.parametrize(
    "strategy, bands",
    [
        ((1.0,), 1),
        ((1.0, 0.5), 2),
        ((1.0, 0.0, 0.5, 0.0), 3),
        (np.eye(4), 1),
        (np.eye(4) + 0.1 * np.eye(4, k=-2), 3),
    ],
)
def test_bands(strategy, bands):
    assert num_bands(strategy) == bands


def test_without_amplification():
    event = unamplified_event_of(
        BMinSepSampling(0.1, 30, 10), 2.5, neighboring_relation="ADD_OR_REMOVE_ONE"
    )
    assert event == gaussian_event(2.5)
    with pytest.raises(FixArgumentsError, match="no guarantee is proven"):
        unamplified_event_of(SAMPLERS["multi_owner"], 2.5, neighboring_relation="ADD_OR_REMOVE_ONE")
    with pytest.raises(FixArgumentsError, match="no sensitivity"):
        unamplified_event_of(SAMPLERS["fixed_replaced"], 2.5, neighboring_relation="REPLACE_ONE")


@settings(max_examples=60)
@given(
    st.floats(0, 1),
    st.integers(1, 30),
    st.one_of(st.none(), st.integers(1, 9)),
    st.integers(1, 6),
    st.sampled_from(PartitionType),
    st.sampled_from(NeighboringRelation),
    st.integers(6, 60),
)
def test_the_event_always_matches_the_sampler(p, steps, limit, cycle, kind, relation, n):
    sampler = CyclicPoissonSampling(p, steps, limit, cycle, kind)
    try:
        event = event_of(sampler, 1.5, num_examples=n, neighboring_relation=relation)
    except FixArgumentsError:
        equal = cycle > 1 and kind is PartitionType.EQUAL_SPLIT
        adding = relation is NeighboringRelation.ADD_OR_REMOVE_ONE
        unknown = limit is not None and cycle > 1 and kind is PartitionType.INDEPENDENT
        special = relation is NeighboringRelation.REPLACE_SPECIAL
        assert unknown or (limit is not None and adding) or (equal and not special)
        return
    count = 1
    if isinstance(event, dp_accounting.SelfComposedDpEvent):
        event, count = event.event, event.count
    assert count == -(-steps // cycle)
    match event:
        case dp_accounting.TruncatedSubsampledGaussianDpEvent():
            assert event.truncated_batch_size == limit
            assert event.dataset_size == n // cycle and event.sampling_probability == p
        case dp_accounting.PoissonSampledDpEvent():
            assert limit is None and event.sampling_probability == p
        case dp_accounting.GaussianDpEvent():
            assert limit is None and p == 1
        case _:
            raise AssertionError(event)
