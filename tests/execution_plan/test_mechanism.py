"""The event is that of the sampler and the noise, after every step."""

import dataclasses

import dp_accounting
import pytest
from plans import BY_SAMPLING, CONFIGS, NOISE, STEPS

from bevel.accounting import epsilon
from bevel.accounting.mixture_events import BallsInBinsDpEvent, RandomAllocationDpEvent
from bevel.errors import FixArgumentsError
from bevel.execution_plan.mechanism import Mechanism

# Truncated and sampled events under replace-one have no RDP, and PLD takes seconds for each.
FAST = ["dpsgd", "fixed", "bandmf", "bandmf_normalized", "blt", "blt_cyclic", "blt_balls_in_bins"]


def mechanism(name):
    return CONFIGS[name].mechanism(NOISE)


@pytest.mark.parametrize("name", FAST)
def test_more_steps_cost_more_and_all_of_them_what_the_whole_run_costs(name):
    found = mechanism(name)
    costs = [
        epsilon(
            found.event_after(steps),
            delta=1e-3,
            neighboring_relation=found.relation,
            accountant_fn=dp_accounting.rdp.RdpAccountant,
        )
        for steps in (1, 3, 4, STEPS)
    ]
    assert costs == sorted(costs) and costs[0] > 0


@pytest.mark.parametrize("name", CONFIGS)
def test_steps_compose_if_each_is_independent(name):
    independent = name.startswith(("dpsgd", "truncated", "fixed", "bandmf_one_band"))
    assert mechanism(name).composes_by_step is independent


@pytest.mark.parametrize("name", CONFIGS)
def test_the_rest_of_a_round_costs_nothing_and_one_more_step_does(name):
    found = mechanism(name)
    steps = found.end_of_round(5)
    assert found.bounded_by_sampling is (name in BY_SAMPLING)
    if name in BY_SAMPLING:
        assert steps == STEPS
        return
    assert found.event_after(steps) == found.event_after(5)
    assert found.event_after(steps + 1) != found.event_after(5)


def test_the_first_steps_of_a_random_allocation_are_charged_as_all_of_them():
    found = mechanism("random_allocation")
    assert found.event_after(1) == RandomAllocationDpEvent(NOISE, STEPS, 2) == found.event_after(9)


def test_relative_to_a_truncated_matrix_the_noise_is_larger():
    found = mechanism("bandmf_balls_in_bins")
    whole, first = found.event_after(STEPS), found.event_after(1)
    assert isinstance(first, BallsInBinsDpEvent) and whole.noise_multiplier == NOISE
    assert first.noise_multiplier == pytest.approx(NOISE * found.sensitivity(STEPS))
    assert found.sensitivity(1) == 1.0


def test_no_noise_is_no_privacy():
    bare = dataclasses.replace(mechanism("dpsgd"), noise_multiplier=None)
    assert bare.event_after(3) == dp_accounting.NonPrivateDpEvent()


def test_relations_without_a_proof_are_refused():
    with pytest.raises(FixArgumentsError, match="no guarantee is proven"):
        dataclasses.replace(mechanism("bandmf"), neighboring_relation="REPLACE_ONE").event_after(1)
    with pytest.raises(FixArgumentsError, match="neighboring_relation='NONE'"):
        Mechanism(mechanism("dpsgd").sampler, 60, "NONE", 1.0).event_after(1)
