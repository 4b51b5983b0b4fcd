"""However a config is mutated, the event of its plan is that of its sampler and noise."""

import dataclasses

import dp_accounting as dpa
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from plans import BUFFERS, COEFS, CONFIGS, STEPS, N, plan

from bevel.accounting import Budget
from bevel.accounting.mixture_events import BallsInBinsDpEvent, RandomAllocationDpEvent
from bevel.batch_selection import PartitionType
from bevel.errors import FixArgumentsError
from bevel.execution_plan import AdaptiveClipping, PlanSecrets
from bevel.execution_plan.config import Target

ALL = {"ADD_OR_REMOVE_ONE", "REPLACE_ONE", "REPLACE_SPECIAL"}
SECRETS = PlanSecrets.for_tests(0)


def times(event, count):
    return event if count == 1 else dpa.SelfComposedDpEvent(event, count)


def event_and_relations(sampler, amplified, noise, n, coefs):
    """The oracle: what is proven for a sampler, written independently."""
    kind = type(sampler).__name__
    if not amplified:
        same_size = kind == "CyclicPoissonSampling" and sampler.cycle_length > 1
        allowed = ALL - {"ADD_OR_REMOVE_ONE"} if same_size else ALL
        return dpa.GaussianDpEvent(noise), allowed
    match kind:
        case "CyclicPoissonSampling":
            cycle, chance = sampler.cycle_length, sampler.sampling_prob
            assert cycle >= len(coefs)
            rounds = -(-sampler.iterations // cycle)
            equal = cycle > 1 and sampler.partition_type is PartitionType.EQUAL_SPLIT
            allowed = {"REPLACE_SPECIAL"} if equal else ALL
            if sampler.truncated_batch_size is not None:
                event = dpa.TruncatedSubsampledGaussianDpEvent(
                    n // cycle, chance, sampler.truncated_batch_size, noise
                )
                assert equal or cycle == 1
                return times(event, rounds), allowed - {"ADD_OR_REMOVE_ONE"}
            inner = dpa.GaussianDpEvent(noise)
            event = inner if chance == 1 else dpa.PoissonSampledDpEvent(chance, inner)
            return times(event, rounds), allowed
        case "FixedBatchSampling":
            inner = dpa.GaussianDpEvent(noise)
            event = dpa.SampledWithoutReplacementDpEvent(n, sampler.batch_size, inner)
            return times(event, sampler.iterations), {"REPLACE_ONE"}
        case "BallsInBinsSampling":
            event = BallsInBinsDpEvent(noise, sampler.iterations, sampler.cycle_length, coefs)
            return event, ALL - {"REPLACE_ONE"}
        case "RandomAllocationSampling":
            uses = sampler.total_participations
            return RandomAllocationDpEvent(noise, sampler.iterations, uses), ALL - {"REPLACE_ONE"}
    raise AssertionError(kind)


MUTATIONS = {
    "noise_multiplier": st.floats(0.3, 20),
    "l2_clip_norm": st.floats(0.1, 10),
    "rescale_to_unit_norm": st.booleans(),
    "neighboring_relation": st.sampled_from(sorted(ALL)),
    "adaptive_clipping": st.sampled_from([None, AdaptiveClipping(count_stddev=100)]),
    "unit": st.sampled_from(["example", "user"]),
    "examples_per_user_per_batch": st.sampled_from([None, 2]),
    "iterations": st.integers(1, 24),
    "num_examples": st.sampled_from([None, 12, 60, 120]),
    "expected_batch_size": st.sampled_from([1, 2, 5, 10, 60, 1000]),
    "truncated_batch_size": st.sampled_from([None, 1, 7, 200]),
    "normalize_by": st.floats(0.5, 100),
    "sampling": st.sampled_from(
        ["poisson", "fixed", "balls_in_bins", "random_allocation", "cyclic_poisson", "min_sep"]
    ),
    "partition_type": st.sampled_from(PartitionType),
    "strategy": st.sampled_from([COEFS, (1.0,), (1.0, -0.5), (0.5,) * 6]),
    "column_normalize": st.booleans(),
    "expected_participations": st.sampled_from([0.5, 1.0, 2.0, 50.0]),
    "min_sep": st.integers(1, 8),
    "buf_decay": st.sampled_from([BUFFERS["buf_decay"], (0.9, 0.1)]),
}


@settings(max_examples=300)
@given(st.data())
def test_the_event_of_a_mutated_config_belongs_to_its_sampler(data):
    config = CONFIGS[data.draw(st.sampled_from(sorted(CONFIGS)))]
    names = sorted({field.name for field in dataclasses.fields(config)} & set(MUTATIONS))
    chosen = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True))
    changes = {name: data.draw(MUTATIONS[name], label=name) for name in chosen}
    try:
        made = dataclasses.replace(config, **changes).make(secrets=SECRETS)
    except FixArgumentsError:
        assume(False)  # refused: nothing to disagree
    sampler = getattr(made.batch_selection_strategy, "base_strategy", made.batch_selection_strategy)
    matrix = made.mechanism.noise_matrix
    coefs = tuple(matrix.first_column(made.iterations).tolist())
    noise = made.mechanism.noise_multiplier
    event, allowed = event_and_relations(sampler, matrix.amplified, noise, made.num_units, coefs)
    assert made.dp_event == event
    assert made.neighboring_relation.name in allowed
    # The noise is that of the event, relative to the bound of one record and C.
    uses = sampler.participation()
    sensitivity = matrix.sensitivity(made.iterations, uses)
    expected = noise * sensitivity * made.l2_norm_bound
    assert expected <= made.noise_stddev <= expected * (1 + 2**-22)
    assert made.noise_addition_transform.record.stddev == made.noise_stddev
    # The sums have the bound that the noise is relative to.
    state = made.noise_addition_transform.init(np.zeros(2, np.float32))
    clipped = made.clipped_grad(lambda w, x: (x @ w).sum(), clip_norm=made.clip_norm(state))
    assert clipped.l2_norm_bound == pytest.approx(made.l2_norm_bound, rel=1e-12)
    assert (made.unit.name == "user") is not clipped.task.keep_batch_dim


def test_calibrated_noise_is_within_the_budget():
    config = CONFIGS["dpsgd"].calibrate(epsilon=2.0, delta=1e-3)
    made = config.make(secrets=SECRETS)
    assert 2.0 - 1e-3 <= made.epsilon() <= 2.0
    assert made.budget == Budget(2.0, 1e-3)
    assert config.target.epsilon == 2.0


def test_calibration_takes_an_accountant_and_a_tolerance():
    rdp = dpa.rdp.RdpAccountant
    config = CONFIGS["dpsgd"].calibrate(epsilon=2.0, delta=1e-3, accountant_fn=rdp, tol=0.01)
    assert (
        config.noise_multiplier
        > CONFIGS["dpsgd"].calibrate(epsilon=2.0, delta=1e-3).noise_multiplier
    )


@pytest.mark.parametrize(
    "change",
    [
        {"noise_multiplier": 0.4},
        {"iterations": 100},
        {"expected_batch_size": 20},
        {"neighboring_relation": "REPLACE_ONE"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_config_that_changed_after_its_calibration_is_refused(change):
    mechanism = CONFIGS["dpsgd"].mechanism(1.5)
    from bevel.execution_plan.fingerprint import fingerprint

    config = dataclasses.replace(CONFIGS["dpsgd"], target=Target(2.0, 1e-3, fingerprint(mechanism)))
    dataclasses.replace(config, l2_clip_norm=3.0).make(secrets=SECRETS)  # costs nothing
    changed = dataclasses.replace(config, **change)
    with pytest.raises(FixArgumentsError, match="changed since then"):
        changed.make(secrets=SECRETS)
    assert dataclasses.replace(changed, target=None).make(secrets=SECRETS).budget is None


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ({"epsilon": 0.0, "delta": 1e-3}, "epsilon=0.0"),
        ({"epsilon": -1.0, "delta": 1e-3}, "epsilon=-1.0"),
        ({"epsilon": 1.0, "delta": 0.0}, "delta=0.0"),
        ({"epsilon": 1.0, "delta": 1.0}, "delta=1.0"),
        ({"epsilon": 1.0, "delta": 2.0}, "delta=2.0"),
    ],
)
@pytest.mark.parametrize("name", ["dpsgd", "bandmf", "blt"])
def test_bad_budgets_say_what_to_write(name, budget, message):
    with pytest.raises(FixArgumentsError, match=message):
        CONFIGS[name].calibrate(**budget)


def test_a_delta_above_one_over_n_is_warned_of():
    with pytest.warns(UserWarning, match=r"delta=0.1 is larger than 1 / 60"):
        CONFIGS["blt"].calibrate(epsilon=1.0, delta=0.1)


@pytest.mark.parametrize("name", ["dpsgd", "bandmf", "blt"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"iterations": 0}, "iterations=0"),
        ({"iterations": 2.5}, "iterations=2.5"),
        ({"noise_multiplier": 0.0}, "noise_multiplier=0.0"),
        ({"noise_multiplier": float("nan")}, "noise_multiplier=nan"),
        ({"l2_clip_norm": 0.0}, "l2_clip_norm=0.0"),
        ({"l2_clip_norm": float("inf")}, "l2_clip_norm=inf"),
        ({"neighboring_relation": "SIBLINGS"}, "SIBLINGS"),
        ({"unit": "cohort"}, "unit='cohort'"),
        ({"num_examples": 0}, "num_examples=0"),
    ],
)
def test_bad_fields_say_what_to_write(name, change, message):
    with pytest.raises(FixArgumentsError, match=message):
        dataclasses.replace(CONFIGS[name], **change)


def test_a_config_without_noise_makes_no_plan():
    with pytest.raises(FixArgumentsError, match="calibrate"):
        dataclasses.replace(CONFIGS["dpsgd"], noise_multiplier=None).make()


def test_relations_are_taken_as_names_or_members():
    config = dataclasses.replace(
        CONFIGS["dpsgd"], neighboring_relation=dpa.NeighboringRelation.REPLACE_ONE
    )
    assert config.neighboring_relation == "REPLACE_ONE"
    assert config == CONFIGS["dpsgd_replace_one"]
    assert plan("dpsgd_replace_one").neighboring_relation is dpa.NeighboringRelation.REPLACE_ONE
    assert (config.num_examples, config.iterations) == (N, STEPS)
