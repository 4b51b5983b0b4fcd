"""Computes what the charges of a ledger cost together."""

import collections
import contextlib
import dataclasses
import json
import math
from typing import Any

import dp_accounting
from dp_accounting import DpEvent

from bevel.accounting.accountants import AccountantFn, cheaper_accountants, default_accountant
from bevel.accounting.arguments import check_budget, relation_of
from bevel.accounting.events import composed
from bevel.accounting.ledger.event_json import event_from_json
from bevel.accounting.ledger.header import LedgerHeader
from bevel.accounting.ledger.totals import LedgerTotals
from bevel.accounting.mixture_events import MixtureDpEvent
from bevel.accounting.rounding import shown_delta, shown_epsilon
from bevel.accounting.spending import epsilon
from bevel.errors import FixArgumentsError


@dataclasses.dataclass(frozen=True)
class Spent:
    """Epsilon so far, over all runs of a ledger. `print(spent.describe())` explains it.

    `events` are all charges, composed into as few events as accountants support. If there are
    several, their epsilons and deltas add up. It is empty if epsilon is infinite.
    """

    epsilon: float
    delta: float
    terms: LedgerHeader  # the header of the ledger
    runs: tuple[str, ...]  # one line of text for each run
    events: tuple[DpEvent, ...] = ()

    def describe(self) -> str:
        """Returns the cost, the budget, the runs, and when the cost is a valid claim, as text."""
        budget, spent = self.terms.budget, shown_epsilon(self.epsilon, infinite="inf")
        lines = [
            f"epsilon {spent} at delta {shown_delta(self.delta)} spent so far, "
            f"per {self.terms.unit}, under {self.terms.relation}",
            f"budget: {budget or 'none'}",
            *self.runs,
            "This holds if you chose what to run, and when to stop, without looking at results.",
            "If such a choice depended on the data, the guarantee is the budget fixed "
            f"beforehand: {budget or 'there was none'}.",
        ]
        return "\n".join(lines)


def compute_spent(totals: LedgerTotals, terms: LedgerHeader, delta: float | None) -> Spent:
    """Computes what `totals` cost at `delta`, by default that of the budget."""
    if delta is None:
        if terms.budget is None:
            raise FixArgumentsError("the ledger has no budget: pass spent(delta=...).")
        delta = terms.budget.delta
    check_budget(delta=delta)
    runs = tuple(
        f"run {name}: steps up to {run.charged_until}, attempts {run.last.attempt + 1}, "
        f"plan {run.last.plan}"
        for name, run in totals.runs.items()
    )
    counts = totals.events()
    cost = epsilon_of(counts, delta, terms.relation)
    events = composed_events(counts, terms.relation) if math.isfinite(cost) else []
    return Spent(cost, delta, terms, runs, tuple(events))


def epsilon_of(
    counts: collections.Counter[str], delta: float, relation: str, *, coarse: bool = False
) -> float:
    """Returns the epsilon of all events in `counts`, each composed as often as it is counted.

    One accountant composes all events if it supports them. Otherwise, and for events bounded by
    sampling, basic composition applies: each event gets an equal share of delta, and the epsilons
    add up. With `coarse`, accountants round more, which is faster and never gives less.
    """
    if not has_noise(counts):
        return math.inf  # accountants do not handle such events in a composition
    events = composed_events(counts, relation)

    def cost(event: DpEvent) -> float:
        accountant_fn: AccountantFn | None = None
        if coarse and not isinstance(event, MixtureDpEvent):
            accountant_fn = cheaper_accountants(event, relation_of(relation), None)[0]
        return epsilon(
            event,
            delta=delta / len(events),
            neighboring_relation=relation,
            accountant_fn=accountant_fn,
        )

    return float(sum(map(cost, events)))


def has_noise(counts: collections.Counter[str]) -> bool:
    """Returns whether all events have noise. Otherwise epsilon is infinite."""
    return all(_has_noise(json.loads(text)) for text in counts)


def _has_noise(event: dict[str, Any]) -> bool:
    inner = [event["event"]] if "event" in event else []
    return (
        event["kind"] != "NonPrivateDpEvent"
        and event.get("noise_multiplier") != 0
        and all(map(_has_noise, inner))
    )


def composed_events(counts: collections.Counter[str], relation: str) -> list[DpEvent]:
    """Composes the counted events into as few events as accountants support."""
    mixtures: list[DpEvent] = []
    others: list[DpEvent] = []
    for text, count in counts.items():
        event = event_from_json(json.loads(text))
        if isinstance(event, MixtureDpEvent):
            mixtures.extend([event] * count)
        else:
            others.append(composed(event, count))
    if len(others) > 1:
        joint = dp_accounting.ComposedDpEvent(tuple(others))  # a tuple can be cached
        with contextlib.suppress(FixArgumentsError):  # else account for each event on its own
            default_accountant(joint, relation_of(relation))
            others = [joint]
    return others + mixtures
