"""The unit of privacy determines what is sampled, clipped and counted."""

import numpy as np
import pytest

from bevel.batch_selection import CyclicPoissonSampling, UserSelectionStrategy
from bevel.errors import FixArgumentsError
from bevel.execution_plan import DPSGDConfig, PerformanceFlags, PlanSecrets
from bevel.execution_plan.privacy_unit import Unit

SAMPLER = CyclicPoissonSampling(0.5, 4)


def test_examples_are_selected_by_the_sampler_itself():
    assert Unit().selection(SAMPLER) is SAMPLER
    assert Unit("user", 3, True).selection(SAMPLER) == UserSelectionStrategy(SAMPLER, 3, True)


@pytest.mark.parametrize(("unit", "follows"), [(Unit(), True), (Unit("user", 3), False)])
def test_the_batch_dimension_follows_from_the_unit(unit, follows):
    assert unit.keep_batch_dim(None) is follows
    assert unit.keep_batch_dim(follows) is follows
    with pytest.raises(FixArgumentsError, match="follows from the unit"):
        unit.keep_batch_dim(not follows)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (("cohort",), "write 'example' or 'user'"),
        (("user",), "needs examples_per_user_per_batch"),
        (("user", 0), "at least 1"),
        (("example", 2), "the unit is 'example'"),
        (("example", None, True), "the unit is 'example'"),
    ],
)
def test_bad_units_say_what_to_write(fields, message):
    with pytest.raises(FixArgumentsError, match=message):
        Unit(*fields)


def test_with_users_everything_counts_users():
    users = {"unit": "user", "examples_per_user_per_batch": 2}
    config = DPSGDConfig(8, 4, 3, noise_multiplier=1.0, **users)
    plan = config.make(secrets=PlanSecrets.for_tests(0))
    user_ids = np.repeat(np.arange(8), 3)  # 24 examples of 8 users
    batch = plan.batch(0, user_ids)
    assert batch.shape[1] == 2
    assert {len({int(user_ids[e]) for e in row}) for row in batch} == {1}
    assert plan.num_units == 8 and plan.mechanism.sampler.sampling_prob == 0.5
    assert plan.padded_sizes().pad(batch).shape == (plan.padded_sizes().size_for(len(batch)), 2)
    with pytest.raises(FixArgumentsError, match="7 users, but the plan was made for 8"):
        plan.batch(0, np.arange(7))
    with pytest.raises(FixArgumentsError, match="keep_batch_dim=True with unit='user'"):
        config.make(PerformanceFlags(keep_batch_dim=True))
    with pytest.warns(UserWarning, match="larger than 1 / 8"):
        DPSGDConfig(8, 4, 3, **users).calibrate(epsilon=5.0, delta=0.2)
