"""Events: what is built, and what is refused."""

import dp_accounting
import numpy as np
import pytest

from bevel.accounting import epsilon, events
from bevel.accounting.mixture_events import BallsInBinsDpEvent, RandomAllocationDpEvent
from bevel.errors import FixArgumentsError

GAUSSIAN = dp_accounting.GaussianDpEvent(1.5)
POISSON = dp_accounting.PoissonSampledDpEvent(0.1, GAUSSIAN)


def repeated(event, count):
    return dp_accounting.SelfComposedDpEvent(event, count)


def test_poisson_sampling():
    assert events.dpsgd_event(1.5, 10, sampling_prob=0.1) == repeated(POISSON, 10)
    assert events.dpsgd_event(1.5, 1, sampling_prob=0.1) == POISSON
    # With probability 1 nothing is sampled, and PLD composes Gaussians exactly.
    assert events.dpsgd_event(1.5, 10, sampling_prob=1.0) == repeated(GAUSSIAN, 10)


def test_zcdp():
    zcdp = dp_accounting.ZCDpEvent(rho=1 / (2 * 1.5**2))
    sampled = dp_accounting.PoissonSampledDpEvent(0.1, zcdp)
    assert events.dpsgd_event(1.5, 10, sampling_prob=0.1, use_zcdp=True) == repeated(sampled, 10)
    fixed = {"dataset_size": 50, "batch_size": 5}
    sampled = dp_accounting.SampledWithoutReplacementDpEvent(50, 5, zcdp)
    assert events.fixed_dpsgd_event(1.5, 10, use_zcdp=True, **fixed) == repeated(sampled, 10)
    sampled = dp_accounting.SampledWithReplacementDpEvent(50, 5, zcdp)
    made = events.fixed_dpsgd_event(1.5, 10, use_zcdp=True, replace=True, **fixed)
    assert made == repeated(sampled, 10)
    assert events.zcdp_event(0.0, 1) == dp_accounting.NonPrivateDpEvent()


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_use_zcdp_is_a_bool_with_and_without_noise(noise):
    with pytest.raises(FixArgumentsError, match="use_zcdp=None: pass True or False"):
        events.dpsgd_event(noise, 10, sampling_prob=0.1, use_zcdp=None)


@pytest.mark.parametrize("use_zcdp", [False, True])
def test_without_noise_a_step_is_not_private(use_zcdp):
    nothing = dp_accounting.NonPrivateDpEvent()
    made = events.dpsgd_event(0.0, 10, sampling_prob=0.1, use_zcdp=use_zcdp)
    assert made == repeated(dp_accounting.PoissonSampledDpEvent(0.1, nothing), 10)
    made = events.fixed_dpsgd_event(0, 2, dataset_size=50, batch_size=5, use_zcdp=use_zcdp)
    assert made == repeated(dp_accounting.SampledWithoutReplacementDpEvent(50, 5, nothing), 2)
    for relation in ("ADD_OR_REMOVE_ONE", "REPLACE_ONE", "REPLACE_SPECIAL"):
        assert epsilon(made, delta=1e-5, neighboring_relation=relation) == np.inf


def test_fixed_size_batches():
    without = dp_accounting.SampledWithoutReplacementDpEvent(50, 5, GAUSSIAN)
    with_ = dp_accounting.SampledWithReplacementDpEvent(50, 60, GAUSSIAN)
    made = events.fixed_dpsgd_event(1.5, 10, dataset_size=50, batch_size=5)
    assert made == repeated(without, 10)
    made = events.fixed_dpsgd_event(1.5, 1, dataset_size=50, batch_size=60, replace=True)
    assert made == with_
    with pytest.raises(FixArgumentsError, match="batch_size=60 of 50"):
        events.fixed_dpsgd_event(1.5, 10, dataset_size=50, batch_size=60)


@pytest.mark.parametrize(
    "iterations, bands, rounds", [(12, 4, 3), (13, 4, 4), (3, 4, 1), (5, 1, 5)]
)
def test_rounds_of_a_cycle(iterations, bands, rounds):
    made = events.amplified_bandmf_event(1.5, iterations, num_bands=bands, sampling_prob=0.1)
    assert made == (POISSON if rounds == 1 else repeated(POISSON, rounds))
    truncated = events.truncated_amplified_bandmf_event(
        1.5,
        iterations,
        num_bands=bands,
        sampling_prob=0.1,
        largest_group_size=20,
        truncated_batch_size=4,
    )
    assert truncated == events.truncated_dpsgd_event(
        1.5, rounds, sampling_prob=0.1, num_examples=20, truncated_batch_size=4
    )


def test_truncation():
    assert events.truncated_dpsgd_event(
        1.5, 7, sampling_prob=0.1, num_examples=20, truncated_batch_size=4
    ) == repeated(dp_accounting.TruncatedSubsampledGaussianDpEvent(20, 0.1, 4, 1.5), 7)


def test_events_that_are_bounded_by_sampling():
    made = events.balls_in_bins_event(1.5, 4, cycle_length=2, strategy=np.array([1.0, 0.5]))
    assert made == BallsInBinsDpEvent(1.5, 4, 2, (1.0, 0.5)) and hash(made) == hash(made)
    dense = events.balls_in_bins_event(1.5, 3, cycle_length=2, strategy=np.eye(3))
    assert dense.strategy == ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
    made = events.random_allocation_event(1.5, 4, total_participations=3)
    assert made == RandomAllocationDpEvent(1.5, 4, 3)
    for wrong in (np.eye(2), np.zeros(3), np.zeros(0), 1.0):
        with pytest.raises(FixArgumentsError, match=r"strategy has .*shape \("):
            events.balls_in_bins_event(1.5, 3, cycle_length=2, strategy=wrong)
    with pytest.raises(FixArgumentsError, match=r"strategy\[0\] is nan"):
        events.balls_in_bins_event(1.5, 3, cycle_length=2, strategy=np.array([np.nan]))
    with pytest.raises(FixArgumentsError, match="lower triangular"):
        events.balls_in_bins_event(1.5, 3, cycle_length=2, strategy=np.ones((3, 3)))
    with pytest.raises(FixArgumentsError, match="total_participations=5 of 4"):
        events.random_allocation_event(1.5, 4, total_participations=5)


@pytest.mark.parametrize(
    "make",
    [
        lambda noise, steps, p: events.dpsgd_event(noise, steps, sampling_prob=p),
        lambda noise, steps, p: events.amplified_bandmf_event(
            noise, steps, num_bands=2, sampling_prob=p
        ),
        lambda noise, steps, p: events.truncated_dpsgd_event(
            noise, steps, sampling_prob=p, num_examples=9, truncated_batch_size=2
        ),
    ],
)
@pytest.mark.parametrize(
    "values, named",
    [
        ((-1.0, 3, 0.1), "noise_multiplier"),
        ((1.0, 0, 0.1), "iterations"),
        ((1.0, 3, 1.1), "sampling_prob"),
        ((1.0, 3, -0.1), "sampling_prob"),
    ],
)
def test_wrong_numbers_are_named(make, values, named):
    with pytest.raises(FixArgumentsError, match=named):
        make(*values)
