"""Finds the most expensive plan of a space, whose event every trial of a search is charged."""

import collections
from collections.abc import Callable, Mapping, Sequence

from bevel.accounting import event_to_json
from bevel.accounting.ledger.dominance import restated
from bevel.accounting.ledger.totals import event_counts
from bevel.errors import FixArgumentsError
from bevel.execution_plan import DPExecutionPlan
from bevel.tuning.spaces import Distribution, Settings, combinations

PlanOf = Callable[[Settings], DPExecutionPlan]
MOST_COMBINATIONS = 256


def costliest_plan(plan_of: PlanOf, space: Mapping[str, Distribution]) -> DPExecutionPlan:
    """Returns the most expensive of the plans at the ends of the space.

    Settings between the ends could still cost more. `check_plan` therefore compares every trial
    with this plan before the search begins.
    """
    return costliest_of(plans_at_ends(plan_of, space))


def plans_at_ends(plan_of: PlanOf, space: Mapping[str, Distribution]) -> list[DPExecutionPlan]:
    """The plans at all ends of the settings that what is charged depends on."""
    start = {name: distribution.ends()[0] for name, distribution in space.items()}
    first = plan_of(start)
    _check_private(first)
    varying = {
        name: distribution.ends()
        for name, distribution in space.items()
        if any(_differ(plan_of(start | {name: end}), first) for end in distribution.ends())
    }
    corners = combinations(varying)
    if len(corners) > MOST_COMBINATIONS:
        raise FixArgumentsError(
            f"what a trial is charged depends on {', '.join(varying)}, which have {len(corners)} "
            f"combinations of ends and choices: search at most {MOST_COMBINATIONS}."
        )
    return [plan_of(start | corner) for corner in corners]


def costliest_of(plans: Sequence[DPExecutionPlan]) -> DPExecutionPlan:
    """The plan that is proven to cost at least as much as all others."""
    for plan in plans:
        if all(_covers(plan, other) for other in plans):
            return plan
    raise FixArgumentsError(
        "the trials differ in what they cost, and no choice of the space is proven to cost at "
        "least as much as all others. Search only settings that epsilon does not depend on, or "
        "give the noise multiplier in place of epsilon, so that more steps or larger batches only "
        "cost more. All trials need the same unit and neighbouring relation."
    )


def check_plan(plan: DPExecutionPlan, costliest: DPExecutionPlan, settings: Settings) -> None:
    """Raises unless a trial with this plan is proven to cost no more than the costliest one."""
    _check_private(plan)
    if not _covers(costliest, plan):
        raise FixArgumentsError(
            f"a trial with {settings} is not proven to cost at most what the search is charged "
            f"for one trial ({costliest.dp_event}). Fix the settings that its event depends on."
        )


def _check_private(plan: DPExecutionPlan) -> None:
    if plan.mechanism.noise_multiplier is None:
        raise FixArgumentsError(
            "the trials are not private, so the best of them is not either. Choose settings on "
            "public data, or make trials with a private config such as DPSGDConfig."
        )
    if plan.secrets.known:
        raise FixArgumentsError(
            "the plan has known secrets (secrets= or test_seed), so all trials would have the same "
            "noise, and their best would not be private. Leave the secrets out."
        )


def _covers(plan: DPExecutionPlan, other: DPExecutionPlan) -> bool:
    return terms(plan) == terms(other) and restated(_costs(other), _costs(plan)) == +_costs(plan)


def _differ(plan: DPExecutionPlan, other: DPExecutionPlan) -> bool:
    return (terms(plan), plan.iterations, _costs(plan)) != (
        terms(other),
        other.iterations,
        _costs(other),
    )


def terms(plan: DPExecutionPlan) -> tuple[str, str, int | None]:
    """What a plan protects. Costs of plans with other terms cannot be compared."""
    return plan.unit.name, plan.neighboring_relation.name, plan.num_units


def _costs(plan: DPExecutionPlan) -> "collections.Counter[str]":
    return event_counts(event_to_json(plan.dp_event))
