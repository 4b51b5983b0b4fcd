"""Enforces a budget: a charge that would exceed it is refused before it is written."""

import collections
import json

from bevel.accounting.calibration import largest_that_fits
from bevel.accounting.ledger.entries import Charge
from bevel.accounting.ledger.event_json import event_from_json
from bevel.accounting.ledger.header import Budget
from bevel.accounting.ledger.spent import epsilon_of
from bevel.accounting.ledger.totals import LedgerTotals
from bevel.accounting.mixture_events import MixtureDpEvent
from bevel.errors import StopRunError

Counts = collections.Counter[str]
MOST_REPEATS = (1 << 40) - 1


class Allowance:
    """Checks whether a charge is within the budget, usually without any accounting.

    When the same event is charged again and again, the largest number of repeats that fits is
    computed once, by bisection. Charges up to that number need no computation, because a part of a
    composition never costs more than the whole.
    """

    def __init__(self, budget: Budget, relation: str) -> None:
        self.budget, self.relation = budget, relation
        self._known_to_fit: Counts = collections.Counter()

    def check(self, totals: LedgerTotals, charge: Charge) -> None:
        """Raises if `totals` with this additional charge would exceed the budget."""
        # The counts of all other events are at most those known to fit, once anything is.
        changed = totals.changes(charge).items()
        known = self._known_to_fit
        if known and all(totals.count(event) + more <= known[event] for event, more in changed):
            return
        total = totals.events(with_charge=charge)
        if not self._fits(total):
            raise StopRunError(
                f"charging steps {charge.first} to {charge.stop} of run {charge.run!r} would spend "
                f"epsilon {self._cost(total):.4g} at delta {self.budget.delta:g}, but the budget "
                f"is {self.budget}. Nothing was charged: do not release these steps, and stop."
            )
        self._known_to_fit = total
        added = total - totals.events()
        events = [event_from_json(json.loads(event)) for event in added]
        if totals.restates(charge) or any(isinstance(event, MixtureDpEvent) for event in events):
            return  # the event will not be repeated, or looking ahead would take minutes

        def repeats(coarse: bool) -> int:
            return largest_that_fits(
                lambda more: self._fits(total + _repeated(added, more), coarse), MOST_REPEATS
            )

        # Coarse accounting finds almost all repeats in a tenth of the time. Later calls find more.
        fitting = repeats(coarse=True) or repeats(coarse=False)
        self._known_to_fit = total + _repeated(added, fitting)

    def _cost(self, counts: Counts, coarse: bool = False) -> float:
        return epsilon_of(counts, self.budget.delta, self.relation, coarse=coarse)

    def _fits(self, counts: Counts, coarse: bool = False) -> bool:
        return self._cost(counts, coarse) <= self.budget.epsilon


def _repeated(counts: Counts, times: int) -> Counts:
    return collections.Counter({event: times * count for event, count in counts.items()})
