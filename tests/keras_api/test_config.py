"""`DPKerasConfig`: its arguments, its noise, and the plan that it makes."""

import warnings

import pytest

from bevel.accounting import dpsgd_event, epsilon
from bevel.accounting.rounding import shown_epsilon
from bevel.errors import FixArgumentsError
from bevel.keras_api import DPKerasConfig

FIELDS = {"epsilon": 3.0, "delta": 1e-4, "clipping_norm": 1.0, "batch_size": 16}
FIELDS |= {"gradient_accumulation_steps": 2, "train_steps": 50, "train_size": 1000}


def config(**changed):
    return DPKerasConfig(**FIELDS | changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"epsilon": 0}, "epsilon=0: pass a positive number"),
        ({"epsilon": -1.0}, "epsilon=-1.0"),
        ({"delta": 0.0}, "delta=0.0"),
        ({"delta": 1.5}, "delta=1.5"),
        ({"clipping_norm": 0.0}, "clipping_norm=0.0: pass a positive number"),
        ({"batch_size": 0}, "batch_size=0: pass an integer of at least 1"),
        ({"batch_size": 16.0}, "batch_size=16.0"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps=0"),
        ({"train_steps": 0}, "train_steps=0"),
        ({"train_size": -5}, "train_size=-5"),
        ({"train_size": 31}, "is 32, which is more than train_size=31"),
        ({"noise_multiplier": 0.0}, "noise_multiplier=0.0: .*leave it out to calibrate"),
        ({"microbatch_size": 0}, "microbatch_size=0"),
        ({"microbatch_size": 17}, "microbatch_size=17 is more than batch_size=16"),
        ({"poisson_sampling_in_fit": "yes"}, "poisson_sampling_in_fit='yes': pass True or False"),
        ({"rescale_to_unit_norm": 1}, "rescale_to_unit_norm=1"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_wrong_fields_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        config(**changed)


def test_the_defaults_are_those_of_jax_privacy():
    made = DPKerasConfig(3.0, 1e-4, 1.0, 16, 2, 50, 1000)
    assert made == config()
    assert made.effective_batch_size == 32
    rest = (made.poisson_sampling_in_fit, made.noise_multiplier, made.rescale_to_unit_norm)
    assert rest == (False, None, True) and made.microbatch_size is made.seed is None


def test_the_noise_is_calibrated_for_poisson_batches_of_the_effective_size():
    calibrated = config().update_with_calibrated_noise_multiplier()
    event = dpsgd_event(calibrated.noise_multiplier, 50, sampling_prob=32 / 1000)
    relation = "ADD_OR_REMOVE_ONE"
    assert 2.99 < epsilon(event, delta=1e-4, neighboring_relation=relation) <= 3
    assert config().noise_multiplier is None
    poisson = config(poisson_sampling_in_fit=True).update_with_calibrated_noise_multiplier()
    assert poisson.noise_multiplier == calibrated.noise_multiplier


def test_poisson_plans_keep_the_budget_and_do_not_warn():
    plan = config(poisson_sampling_in_fit=True, clipping_norm=2.0).make_plan()
    assert 2.99 < plan.epsilon(delta=1e-4) <= 3
    assert plan.expected_batch_size == plan.clip.normalize_by == 32
    assert plan.clip.l2_clip_norm == 2.0 and plan.flags.microbatch_size == 16
    assert plan.iterations == 50 and plan.num_units == 1000 and not plan.secrets.known


def test_fixed_batches_warn_with_the_epsilon_that_is_proven_for_them():
    with pytest.warns(UserWarning, match="batches of exactly 32 examples.* and not 3") as caught:
        plan = config().make_plan()
    proven = plan.epsilon(delta=1e-4)
    assert proven > 3 and f"epsilon is {shown_epsilon(proven)} (replace-one)" in str(
        caught[0].message
    )
    assert plan.neighboring_relation.name == "REPLACE_ONE"
    assert {len(plan.batch(step, 1000)) for step in range(3)} == {32}


def test_fixed_batches_with_enough_noise_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config(noise_multiplier=20.0).make_plan()


def test_less_noise_than_the_budget_needs_warns():
    changed = {"poisson_sampling_in_fit": True, "noise_multiplier": 0.2}
    with pytest.warns(UserWarning, match=r"noise_multiplier=0.2 gives epsilon .* and not 3"):
        config(**changed).make_plan()


def test_a_seed_is_for_tests():
    changed = {"poisson_sampling_in_fit": True, "seed": 3}
    with pytest.warns(UserWarning, match="leave out seed for real data"):
        plans = [config(**changed).make_plan() for _ in range(2)]
    assert plans[0].secrets == plans[1].secrets and plans[0].secrets.known


def test_errors_are_those_of_bevel():
    with pytest.raises(FixArgumentsError):
        config(train_steps=None)
