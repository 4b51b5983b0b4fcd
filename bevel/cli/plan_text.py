"""A proposal as text of at most 80 columns, as data for programs, and as tables of a config."""

import textwrap
from typing import Any

from bevel.choosing import NoisePoint, Proposal
from bevel.cli.toml_tables import toml_text

WIDTH = 79
BAR = 24
# The table of a config that holds each number.
KEYS = {
    "plan": ("epsilon", "delta", "batch_size", "steps", "clip_norm"),
    "optimizer": ("name", "learning_rate", "momentum"),
}


def proposal_text(proposal: Proposal) -> str:
    """What is proposed, with reasons; the noise against the batch size; the tables to copy.

    With a given batch size and number of steps there is nothing to compare, or to copy.
    """
    count = f"{proposal.request.num_units:,} {proposal.request.unit}s"
    parts = [
        f"A plan for {count}. It depends on no record, only on their number.",
        "",
        _choices(proposal),
        "",
    ]
    chosen = proposal.choices
    if chosen["batch_size"].given and chosen["steps"].given:
        return "\n".join([*parts, effect_text(proposal), ""])
    parts += [noise_text(proposal), "", effect_text(proposal), ""]
    parts += ["For the config (--write FILE puts it there):", ""]
    parts += [textwrap.indent(toml_text(config_tables(proposal)), "    ")]
    return "\n".join(parts)


def _choices(proposal: Proposal) -> str:
    lines = []
    for name, choice in proposal.choices.items():
        head = f"  {name.replace('_', ' '):<14} {_count(choice.value):<10} "
        lines += textwrap.wrap(
            choice.reason, WIDTH, initial_indent=head, subsequent_indent=" " * len(head)
        )
    return "\n".join(lines)


def _count(value: float) -> str:
    return f"{value:.4g}" if value < 1000 else f"{value:,.0f}"


def noise_text(proposal: Proposal) -> str:
    """The noise against the batch size, one line for each, with the chosen one marked."""
    curve, chosen = proposal.curve, proposal.point
    same = f"{curve.epochs:.3g} epochs" if curve.epochs else f"{chosen.steps:,} steps"
    lines = [
        f"Noise against batch size, each with {same} and calibrated to the budget:",
        "",
        f"   {'batch':>9} {'steps':>9} {'noise':>8} {'noise':>9}   noise over the run,",
        f"   {'size':>9} {'':>9} {'mult.':>8} {'per step':>9}   above the least possible",
    ]
    points = sorted({*curve.points, chosen}, key=lambda point: point.batch_size)
    most = max(curve.excess(point) for point in points)
    for point in points:
        excess = curve.excess(point)
        bar = "#" * max(1, round(BAR * excess / most)) if excess > 0 else ""
        mark = ">" if point.batch_size == chosen.batch_size else " "
        lines.append(
            f" {mark} {_count(point.batch_size):>9} {point.steps:>9,} "
            f"{point.noise_multiplier:>8.3f} {point.noise_per_step:>9.2e}   "
            f"{f'{max(excess, 0):.0%}':>5} {bar}"
        )
    return "\n".join(lines)


def effect_text(proposal: Proposal) -> str:
    """What the noise means for a step and for the run."""
    point, request = proposal.point, proposal.request
    excess = max(0.0, proposal.curve.excess(point))
    lines = [
        f"noise multiplier {point.noise_multiplier:.4g}: each coordinate of a mean gradient gets "
        f"noise of {point.noise_per_step:.2g} clip norms, of which {point.noise_over_run:.2g} are "
        f"left in the average over {point.steps:,} steps, {excess:.0%} above the least possible."
    ]
    ratio = proposal.signal_to_noise
    if ratio is not None:
        lines.append(
            f"signal to noise: with {request.parameters:,} parameters, at most {ratio:.2g} in one "
            f"step and {ratio * point.steps**0.5:.2g} over the run (a mean gradient of one clip "
            "norm over the norm of its noise)."
        )
    else:
        lines.append("signal to noise: pass --parameters N, or a config, to see it.")
    return "\n".join(textwrap.fill(line, WIDTH, subsequent_indent="  ") for line in lines)


def config_tables(proposal: Proposal) -> dict[str, dict[str, Any]]:
    """The numbers as tables of a config."""
    choices = {name: choice.value for name, choice in proposal.choices.items()}
    values = {**choices, "name": proposal.request.optimizer}
    if proposal.request.optimizer == "sgd":
        values["momentum"] = proposal.request.momentum
    return {
        table: {name: values[name] for name in names if name in values}
        for table, names in KEYS.items()
    }


def proposal_json(proposal: Proposal) -> dict[str, Any]:
    """The same for programs. Noise is in units of the clip norm."""
    return {
        "units": proposal.request.num_units,
        "unit": proposal.request.unit,
        "relation": proposal.request.relation,
        "choices": {
            name: {"value": choice.value, "given": choice.given, "reason": choice.reason}
            for name, choice in proposal.choices.items()
        },
        "chosen": _point_json(proposal, proposal.point),
        "signal_to_noise": proposal.signal_to_noise,
        "least_noise_over_run": proposal.curve.least,
        "curve": [_point_json(proposal, point) for point in proposal.curve.points],
    }


def _point_json(proposal: Proposal, point: NoisePoint) -> dict[str, float]:
    return {
        "batch_size": point.batch_size,
        "steps": point.steps,
        "noise_multiplier": point.noise_multiplier,
        "noise_per_step": point.noise_per_step,
        "noise_over_run": point.noise_over_run,
        "above_the_least": proposal.curve.excess(point),
    }
