"""What a ledger's charges cost together."""

import collections
import dataclasses
import math
from typing import Any

import dp_accounting
from dp_accounting import DpEvent

from bevel.accounting.accountants import AccountantFn, cheaper_accountants, default_accountant
from bevel.accounting.arguments import check_budget, relation_of
from bevel.accounting.events import composed
from bevel.accounting.ledger.event_json import event_from_json
from bevel.accounting.ledger.header import LedgerHeader
from bevel.accounting.ledger.totals import LedgerTotals, event_of_text
from bevel.accounting.mixture_events import MixtureDpEvent
from bevel.accounting.spending import epsilon
from bevel.errors import FixArgumentsError


@dataclasses.dataclass(frozen=True)
class Spent:
    """Epsilon so far, over all runs of a ledger. `print(spent.describe())` says what it means.

    `events` are all charges, as few as can each be accounted for. Where there are several, no
    accountant has them together: their epsilons and deltas add up. Without noise there are none.
    """

    epsilon: float
    delta: float
    terms: LedgerHeader
    runs: tuple[str, ...]  # a line of text for each
    events: tuple[DpEvent, ...] = ()

    def describe(self) -> str:
        """The cost, the budget, the runs, and what may be claimed where choices saw results."""
        budget = self.terms.budget
        lines = [
            f"epsilon {self.epsilon:.4g} at delta {self.delta:g} spent so far, "
            f"per {self.terms.unit}, under {self.terms.relation}",
            f"budget: {budget or 'none'}",
            *self.runs,
            "This holds if what ran, and when it ended, was chosen without looking at results.",
            "Where what ran next depended on the data, the guarantee is the budget fixed "
            f"beforehand: {budget or 'there was none'}.",
        ]
        return "\n".join(lines)


def spent_by(books: LedgerTotals, terms: LedgerHeader, delta: float | None) -> Spent:
    """What `books` add up to, at `delta`, or at the delta of the budget."""
    if delta is None:
        if terms.budget is None:
            raise FixArgumentsError("the ledger has no budget, so give spent(delta=...).")
        delta = terms.budget.delta
    check_budget(delta=delta)
    runs = tuple(
        f"run {name}: steps up to {run.reached}, attempts {run.last.attempt + 1}, "
        f"plan {run.last.plan}"
        for name, run in books.runs.items()
    )
    counts = books.events()
    cost = epsilon_of(counts, delta, terms.relation)
    events = _parts_of(counts, terms.relation) if math.isfinite(cost) else []
    return Spent(cost, delta, terms, runs, tuple(events))


def epsilon_of(
    counts: collections.Counter[str], delta: float, relation: str, *, coarse: bool = False
) -> float:
    """The epsilon of events, each composed as often as it counts.

    One accountant composes all that it takes together. Events that have no accountant (they are
    bounded by sampling), or none in common, get an equal share of delta each, and their epsilons
    add up: basic composition. With `coarse`, accountants round more: faster, and never below.
    """
    if any(not _is_noisy(event_of_text(text)) for text in counts):
        return math.inf  # accountants lose their way in a composition with it
    parts = _parts_of(counts, relation)

    def cost(part: DpEvent) -> float:
        rough = coarse and not isinstance(part, MixtureDpEvent)
        return epsilon(
            part,
            delta=delta / len(parts),
            neighboring_relation=relation,
            accountant_fn=_coarser_accountant(part, relation) if rough else None,
        )

    return float(sum(map(cost, parts)))


def _coarser_accountant(event: DpEvent, relation: str) -> AccountantFn:
    return cheaper_accountants(event, relation_of(relation), None)[0]


def _is_noisy(event: dict[str, Any]) -> bool:
    inner = [event["event"]] if "event" in event else []
    return (
        event["kind"] != "NonPrivateDpEvent"
        and event.get("noise_multiplier") != 0
        and all(map(_is_noisy, inner))
    )


def _parts_of(counts: collections.Counter[str], relation: str) -> list[DpEvent]:
    events = [(event_from_json(event_of_text(text)), count) for text, count in counts.items()]
    return _separate_parts(events, relation)


def _separate_parts(events: list[tuple[DpEvent, int]], relation: str) -> list[DpEvent]:
    """As few events as can each be accounted for, that together are all of `events`."""
    apart: list[DpEvent] = []
    together: list[DpEvent] = []
    for event, count in events:
        if isinstance(event, MixtureDpEvent):
            apart.extend([event] * count)
        else:
            together.append(composed(event, count))
    if len(together) > 1:
        joint = dp_accounting.ComposedDpEvent(together)
        try:
            default_accountant(joint, relation_of(relation))
            together = [joint]
        except FixArgumentsError:
            pass  # each has its own accountant, or raises by itself
    return together + apart
