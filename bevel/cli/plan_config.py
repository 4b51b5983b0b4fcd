"""Turns the [plan] table of a config into a calibrated plan config."""

from typing import Any, TypeAlias

from bevel import execution_plan as configs
from bevel.checks import whole_number
from bevel.cli.config import PlanTable
from bevel.datasets import DataSet
from bevel.errors import FixArgumentsError

Private: TypeAlias = configs.DPSGDConfig | configs.BandMFConfig | configs.BLTConfig


def plan_config(
    plan: PlanTable, examples: int, *, unit: str = "example", examples_per_user: int = 1
) -> Private | configs.NonPrivateConfig:
    """The config for `Trainer`, calibrated to epsilon unless the noise multiplier is given.

    Args:
      examples: the number of training examples; of users, if they are the unit.
      unit: 'example' or 'user'.
      examples_per_user: the most examples of one user in a batch, if users are the unit.
    """
    whole_number("examples", examples, 1)
    if plan.mechanism == "none":
        private = ("epsilon", "noise_multiplier", "adapt_clip_norm_to")
        found = [name for name in private if getattr(plan, name) is not None]
        if found:
            raise FixArgumentsError(
                f"[plan] mechanism is none, which protects nothing, but {', '.join(found)} is set. "
                "Leave it out, or use dpsgd, bandmf or blt."
            )
        return configs.NonPrivateConfig(plan.steps, round(plan.batch_size))
    if (plan.epsilon is None) == (plan.noise_multiplier is None):
        which = "neither epsilon nor" if plan.epsilon is None else "both epsilon and"
        raise FixArgumentsError(f"[plan] has {which} noise_multiplier: set exactly one of them.")
    if plan.delta is None:
        raise FixArgumentsError(
            f"[plan] has no delta: set a number well below 1 / {examples}, such as "
            f"{0.1 / examples:.0e}."
        )
    of_users = {"unit": "user", "examples_per_user_per_batch": examples_per_user}
    uncalibrated = _uncalibrated(plan, examples, of_users if unit == "user" else {})
    if plan.epsilon is None:
        return uncalibrated
    return uncalibrated.calibrate(epsilon=plan.epsilon, delta=plan.delta)


def plan_for(plan: PlanTable, data: DataSet) -> Private | configs.NonPrivateConfig:
    """The config for a data set: its users are protected if it has user ids, else its examples."""
    if data.user_ids is not None:
        return plan_config(plan, data.units, unit="user", examples_per_user=plan.examples_per_user)
    if plan.examples_per_user != 1:
        raise FixArgumentsError(
            f"[plan] examples_per_user is {plan.examples_per_user}, but [data] has no user ids, so "
            "examples are protected: write user = 'NAME' in [data], or leave it out."
        )
    return plan_config(plan, data.units)


def _uncalibrated(plan: PlanTable, examples: int, unit: dict[str, Any]) -> Private:
    options: dict[str, Any] = {
        **unit,
        "l2_clip_norm": plan.clip_norm,
        "noise_multiplier": plan.noise_multiplier,
    }
    if plan.adapt_clip_norm_to is not None:
        quantile = plan.adapt_clip_norm_to
        options["adaptive_clipping"] = configs.AdaptiveClipping(target_quantile=quantile)
    for name, value in (("sampling", plan.sampling), ("neighboring_relation", plan.relation)):
        if value is not None:
            options[name] = value
    match plan.mechanism:
        case "dpsgd":
            return configs.DPSGDConfig.default(examples, plan.batch_size, plan.steps, **options)
        case "bandmf":
            _check_bands(plan, examples)
            return configs.BandMFConfig.default(
                plan.bands,
                plan.steps,
                plan.steps * plan.batch_size / examples,
                num_examples=examples,
                normalize_by=plan.batch_size,
                **options,
            )
        case _:  # blt, because "none" has no noise to calibrate
            return configs.BLTConfig.default(
                examples,
                plan.batch_size,
                plan.steps,
                min_sep=plan.min_sep,
                max_buffers=plan.buffers,
                **options,
            )


def _check_bands(plan: PlanTable, examples: int) -> None:
    """Raises if batches are larger than the groups that BandMF splits the examples into."""
    if plan.sampling in (None, "cyclic_poisson") and 1 <= plan.bands <= plan.steps:
        largest = examples / plan.bands
        if plan.batch_size > largest * (1 + 1e-9):
            raise FixArgumentsError(
                f"[plan] batch_size is {plan.batch_size:g} with {plan.bands} bands and {examples} "
                f"examples: an example is used at most once in {plan.bands} steps, so batches have "
                f"at most {largest:g} examples. Use a smaller batch_size or fewer bands."
            )
