"""The table of a plan: what it protects, how, and what it costs."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dp_accounting import NeighboringRelation
from rich.table import Table

from bevel.accounting import epsilon
from bevel.accounting.rounding import shown_epsilon
from bevel.errors import FixArgumentsError
from bevel.sharding.tables import wrapped

if TYPE_CHECKING:
    from bevel.execution_plan.plan import DPExecutionPlan

WIDTH = 80
NOT_DEFINED = "not defined"


def plan_table(plan: "DPExecutionPlan", delta: float | None = None) -> str:
    """Returns the table as text, with epsilons at `delta`, by default the budget's delta."""
    delta = plan.budget.delta if delta is None and plan.budget is not None else delta
    table = Table(show_header=False, width=WIDTH)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for section in (
        _protection(plan),
        _batches(plan),
        _clipping(plan),
        _noise(plan),
        _costs(plan, delta),
    ):
        for name, value in section:
            table.add_row(name, value)
        table.add_section()
    table.add_row("fingerprint", plan.fingerprint())
    return wrapped(table, width=WIDTH) + "\n"


Rows = Iterator[tuple[str, str]]


def _protection(plan: "DPExecutionPlan") -> Rows:
    yield "unit of privacy", plan.unit.name
    yield "neighbouring relation", plan.neighboring_relation.name
    yield "budget", str(plan.budget or "none: not calibrated")
    if plan.secrets.known:
        yield "secrets", "known, for tests only: nothing is protected"


def _batches(plan: "DPExecutionPlan") -> Rows:
    units = f"{plan.unit.name}s"
    yield "sampler", str(plan.batch_selection_strategy)
    yield units, "not given" if plan.num_units is None else str(plan.num_units)
    yield "steps", str(plan.iterations)
    if not plan.mechanism.noise_matrix.amplified:
        uses = plan.mechanism.sampler.participation()
        count, separation = uses.max_participations, uses.min_separation
        yield f"uses of one {plan.unit.name}", f"at most {count}, at least {separation} steps apart"
    if plan.expected_batch_size is None:
        yield "expected batch", "not known: pass num_examples"
        return
    sizes = ", ".join(map(str, plan.padded_sizes().sizes))
    yield "expected batch", f"{plan.expected_batch_size:g} {units}"
    yield "padded batches", f"{sizes} {units}"


def _clipping(plan: "DPExecutionPlan") -> Rows:
    norm = f"{plan.clip.l2_clip_norm:g}"
    counting = plan.counting
    if counting is not None:
        quantile = counting.options.target_quantile
        norm += (
            f" initially, adapted so that a fraction of {quantile:g} is not clipped; the count has "
            f"noise of {counting.count_stddev:g} {plan.unit.name}s"
        )
    yield "clip norm", norm
    scaled = "divided by the clip norm, " if plan.clip.rescale_to_unit_norm else ""
    yield "sum of gradients", f"{scaled}divided by {plan.clip.normalize_by:g}"
    yield f"bound of one {plan.unit.name}", f"{plan.l2_norm_bound:.6g}"


def _noise(plan: "DPExecutionPlan") -> Rows:
    multiplier = plan.mechanism.noise_multiplier
    if multiplier is None:
        yield "noise", "none: nothing is protected"
        return
    matrix = plan.mechanism.noise_matrix
    bound = f"the bound of one {plan.unit.name}"
    if not matrix.amplified:
        bound += f" and the sensitivity of C, {plan.mechanism.sensitivity(plan.iterations):.6g}"
    elif matrix.noising_matrix(plan.iterations) is not None:
        bound += f" and the column norm of C, {plan.mechanism.sensitivity(plan.iterations):.6g}"
    over_sensitivity = f"{multiplier:.6g}: the sensitivity is the bound"
    if plan.neighboring_relation is NeighboringRelation.REPLACE_ONE:
        over_sensitivity = f"{multiplier / 2:.6g}: the sensitivity is twice the bound"
    yield "noise multiplier", f"{multiplier:.6g}, relative to {bound}"
    yield "  over the sensitivity", over_sensitivity
    if plan.counting is not None:
        yield "  of the gradients alone", f"{plan.counting.gradient_noise_multiplier:.6g}"
    yield "standard deviation", f"{plan.noise_stddev:.6g} in each coordinate of z"
    yield "noise", str(matrix)
    yield (
        "error of the mechanism",
        f"{plan.rmse:.6g}: root mean square over steps, in each coordinate of the summed noise",
    )


def _costs(plan: "DPExecutionPlan", delta: float | None) -> Rows:
    if delta is None:
        yield "epsilon", "pass describe(delta=...)"
        return
    for relation in NeighboringRelation:
        mark = " (of this plan)" if relation is plan.neighboring_relation else ""
        yield f"epsilon, {relation.name}", _cost_under(plan, relation, delta) + mark


def _cost_under(plan: "DPExecutionPlan", relation: NeighboringRelation, delta: float) -> str:
    """Returns the epsilon of the run under a relation, if it is proven and can be computed."""
    if plan.mechanism.noise_multiplier is None:
        return "infinite"
    if relation.name not in plan.mechanism.claim().relations:
        return NOT_DEFINED
    if plan.mechanism.bounded_by_sampling:
        if plan.budget is None or plan.budget.delta != delta:
            return "by Monte Carlo sampling: call plan.epsilon(delta=...)"
        return f"at most {plan.budget.epsilon:g} at delta {delta:g}, by Monte Carlo sampling"
    try:
        value = epsilon(plan.dp_event, delta=delta, neighboring_relation=relation)
    except FixArgumentsError:
        return NOT_DEFINED  # proven, but no accountant supports it
    return "infinite" if math.isinf(value) else f"{shown_epsilon(value)} at delta {delta:g}"
