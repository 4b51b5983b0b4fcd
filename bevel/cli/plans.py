"""The plan of a config: a table of TOML in, a calibrated config out."""

from typing import Any

from bevel.cli.config import PlanTable
from bevel.errors import FixArgumentsError
from bevel.execution_plan import (
    AdaptiveClipping,
    BandMFConfig,
    BLTConfig,
    DPSGDConfig,
    NonPrivateConfig,
)


def plan_config(plan: PlanTable, examples: int) -> Any:
    """What `Trainer(config=...)` takes: calibrated, unless the noise is given."""
    if plan.mechanism == "none":
        _refuse(plan, "epsilon", "noise_multiplier", "adapt_clip_norm_to")
        return NonPrivateConfig(plan.steps, round(plan.batch_size))
    if (plan.epsilon is None) == (plan.noise_multiplier is None):
        raise FixArgumentsError(
            "the plan needs either epsilon or noise_multiplier: give one of them "
            f"(epsilon={plan.epsilon}, noise_multiplier={plan.noise_multiplier})."
        )
    if plan.delta is None:
        raise FixArgumentsError(
            f"the plan has no delta: give one well below 1 / {examples}, such as "
            f"{0.1 / examples:.0e}."
        )
    uncalibrated = _private(plan, examples)
    if plan.epsilon is None:
        return uncalibrated
    return uncalibrated.calibrate(epsilon=plan.epsilon, delta=plan.delta)


def _private(plan: PlanTable, examples: int) -> Any:
    options: dict[str, Any] = {
        "l2_clip_norm": plan.clip_norm,
        "noise_multiplier": plan.noise_multiplier,
    }
    if plan.adapt_clip_norm_to is not None:
        options["adaptive_clipping"] = AdaptiveClipping(target_quantile=plan.adapt_clip_norm_to)
    for name, value in (("sampling", plan.sampling), ("neighboring_relation", plan.relation)):
        if value is not None:
            options[name] = value
    match plan.mechanism:
        case "dpsgd":
            return DPSGDConfig.default(examples, plan.batch_size, plan.steps, **options)
        case "bandmf":
            return BandMFConfig.default(
                plan.bands,
                plan.steps,
                plan.steps * plan.batch_size / examples,
                num_examples=examples,
                normalize_by=plan.batch_size,
                **options,
            )
        case "blt":
            return BLTConfig.default(
                examples,
                plan.batch_size,
                plan.steps,
                min_sep=plan.min_sep,
                max_buffers=plan.buffers,
                **options,
            )
    raise FixArgumentsError(f"mechanism={plan.mechanism!r}: write dpsgd, bandmf, blt or none.")


def _refuse(plan: PlanTable, *names: str) -> None:
    """Raises if the plan asks for privacy that it will not have."""
    given = [name for name in names if getattr(plan, name) is not None]
    if given:
        raise FixArgumentsError(
            f"mechanism='none' with {', '.join(given)}: nothing is protected then. Leave them "
            "out, or choose dpsgd, bandmf or blt."
        )
