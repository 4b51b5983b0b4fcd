"""A [plan] table becomes the config of the mechanism it names, with exactly its options."""

import numpy as np
import pytest

from bevel.cli.config import PlanTable
from bevel.cli.plan_config import plan_config, plan_for
from bevel.datasets import DataSet, DataSpec
from bevel.errors import FixArgumentsError
from bevel.execution_plan import BandMFConfig, BLTConfig, DPSGDConfig, NonPrivateConfig
from bevel.training.data import ArraySource


def test_dpsgd_is_calibrated_for_its_budget():
    made = plan_config(PlanTable(10, 5, epsilon=4, delta=1e-3, clip_norm=0.5), 100)
    assert made == DPSGDConfig.default(100, 10, 5, l2_clip_norm=0.5).calibrate(
        epsilon=4, delta=1e-3
    )
    assert made.make().epsilon() <= 4


@pytest.mark.parametrize(("mechanism", "kind"), [("bandmf", BandMFConfig), ("blt", BLTConfig)])
def test_correlated_noise(mechanism, kind):
    plan = PlanTable(10, 12, mechanism, delta=1e-3, noise_multiplier=1.0, bands=3, buffers=2)
    made = plan_config(plan, 99)  # divisible by the number of bands
    assert isinstance(made, kind)
    ready = made.make()
    assert ready.expected_batch_size == pytest.approx(10)
    assert ready.clip.normalize_by == 10
    assert ready.iterations == 12
    assert made.noise_multiplier == 1.0


def test_options_reach_the_config():
    plan = PlanTable(
        10, 5, delta=1e-3, noise_multiplier=2.0, sampling="fixed", relation="REPLACE_ONE",
        adapt_clip_norm_to=0.7,
    )  # fmt: skip
    made = plan_config(plan, 100)
    assert (made.sampling, made.neighboring_relation) == ("fixed", "REPLACE_ONE")
    assert made.adaptive_clipping.target_quantile == 0.7


def test_no_privacy():
    assert plan_config(PlanTable(10, 5, "none"), 100) == NonPrivateConfig(5, 10)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (PlanTable(10, 5, delta=1e-3), "neither epsilon nor noise_multiplier"),
        (PlanTable(10, 5, epsilon=3, noise_multiplier=1.0, delta=1e-3), "both epsilon and"),
        (PlanTable(10, 5, epsilon=3), "no delta: .* well below 1 / 100, such as 1e-03"),
        (PlanTable(10, 5, "none", epsilon=3), "mechanism is none.* but epsilon is set"),
    ],
)
def test_errors_name_missing_and_conflicting_fields(plan, message):
    with pytest.raises(FixArgumentsError, match=message):
        plan_config(plan, 100)


def data_of(user_ids):
    records = ArraySource({"x": np.zeros((90, 2)), "y": np.zeros(90, np.int32)})
    return DataSet(DataSpec("table", (2,), classes=2), records, records, user_ids)


@pytest.mark.parametrize("mechanism", ["dpsgd", "bandmf", "blt"])
def test_user_ids_make_users_the_unit(mechanism):
    """The batch size, the number of units and the event are those of 30 users, not 90 records."""
    plan = PlanTable(
        5, 6, mechanism, delta=1e-3, noise_multiplier=1.0, bands=3, examples_per_user=2
    )
    made = plan_for(plan, data_of(np.arange(90) // 3)).make()
    assert (made.unit.name, made.unit.examples_per_user_per_batch) == ("user", 2)
    assert made.num_units == 30
    assert made.epsilon(1e-3) == pytest.approx(plan_config(plan, 30).make().epsilon(1e-3))
    assert plan_for(PlanTable(5, 6, "none"), data_of(np.arange(90) // 3)).batch_size == 5


def test_examples_per_user_needs_user_ids():
    plan = PlanTable(5, 6, delta=1e-3, noise_multiplier=1.0)
    assert plan_for(plan, data_of(None)).make().num_units == 90
    with pytest.raises(
        FixArgumentsError, match=r"examples_per_user is 3, but \[data\] has no user"
    ):
        plan_for(PlanTable(5, 6, delta=1e-3, examples_per_user=3), data_of(None))


def test_users_are_the_units_of_the_plan():
    plan = PlanTable(10, 5, delta=1e-3, noise_multiplier=1.0)
    made = plan_config(plan, 100, unit="user", examples_per_user=2)
    assert (made.unit, made.examples_per_user_per_batch, made.num_examples) == ("user", 2, 100)
