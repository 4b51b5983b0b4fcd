"""A search is charged for the most expensive trial of its space, or refused."""

import pytest
import searches

from bevel.errors import FixArgumentsError
from bevel.execution_plan import BandMFConfig, NonPrivateConfig, PlanSecrets
from bevel.tuning import LogUniform, OneOf, Uniform
from bevel.tuning.costliest import check_plan, costliest_of, costliest_plan, plans_at_ends


def plan_of(settings):
    return searches.config(**{n: v for n, v in settings.items() if n != "rate"}).make()


def test_settings_without_an_effect_on_privacy_leave_the_event_alone():
    plan = costliest_plan(plan_of, {"rate": LogUniform(0.1, 1), "l2_clip_norm": Uniform(0.5, 2)})
    assert plan.dp_event == plan_of({}).dp_event


def test_the_most_expensive_of_noise_steps_and_batch_size_is_charged():
    space = {
        "noise_multiplier": LogUniform(1.0, 4.0),
        "iterations": OneOf(2, 6, 4),
        "expected_batch_size": OneOf(4, 16),
    }
    plan = costliest_plan(plan_of, space)
    most = {"noise_multiplier": 1.0, "iterations": 6, "expected_batch_size": 16}
    assert plan.dp_event == plan_of(most).dp_event
    check_plan(plan_of({"noise_multiplier": 3.0, "expected_batch_size": 7}), plan, {})


def test_trials_that_cannot_be_compared_are_refused():
    def opposite(settings):
        size = settings["size"]
        return plan_of({"expected_batch_size": size, "noise_multiplier": size / 4})

    with pytest.raises(FixArgumentsError, match="no choice of the space is proven to cost"):
        costliest_plan(opposite, {"size": OneOf(4, 16)})


def test_a_trial_between_the_ends_that_costs_more_is_refused():
    plan = plan_of({"noise_multiplier": 2.0})
    settings = {"noise_multiplier": 1.9}
    with pytest.raises(FixArgumentsError, match="is not proven to cost at most"):
        check_plan(plan_of(settings), plan, settings)


@pytest.mark.parametrize(
    "other", [{"num_examples": 47}, {"neighboring_relation": "REPLACE_SPECIAL"}]
)
def test_other_units_and_relations_are_refused(other):
    with pytest.raises(FixArgumentsError, match="is not proven to cost at most"):
        check_plan(plan_of(other | {"expected_batch_size": 2}), plan_of({}), other)


def test_trials_without_privacy_are_refused():
    with pytest.raises(FixArgumentsError, match="the trials are not private"):
        costliest_plan(lambda _: NonPrivateConfig(2, 8).make(), searches.SPACE)


def test_known_secrets_are_refused_because_all_trials_would_have_the_same_noise():
    def known(_):
        return searches.config().make(secrets=PlanSecrets.for_tests(1))

    with pytest.raises(FixArgumentsError, match="all trials would have the same noise"):
        costliest_plan(known, searches.SPACE)


def test_too_many_combinations_are_refused():
    space = {"noise_multiplier": OneOf(*range(1, 30)), "iterations": OneOf(*range(1, 12))}
    with pytest.raises(FixArgumentsError, match="319 combinations of ends and choices"):
        costliest_plan(plan_of, space)


def test_relations_that_differ_are_refused_although_the_events_are_equal():
    space = {"neighboring_relation": OneOf("ADD_OR_REMOVE_ONE", "REPLACE_SPECIAL")}
    with pytest.raises(FixArgumentsError, match="the same unit and neighbouring relation"):
        costliest_plan(plan_of, space)


def test_the_costliest_plan_need_not_take_the_most_steps():
    """Its sampling probability is larger by a rounding error."""

    def banded(settings):
        steps = settings["steps"]
        bands = (1.0, 0.5, 0.25, 0.1)
        config = BandMFConfig(steps, steps / 6, bands, num_examples=48, noise_multiplier=1.5)
        return config.make()

    plans = plans_at_ends(banded, {"steps": OneOf(7, 8)})
    assert [plan.iterations for plan in plans] == [7, 8]
    assert costliest_of(plans).iterations == 7
