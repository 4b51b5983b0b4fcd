"""A budget, held: charges that would exceed it are refused before they are written."""

import collections
from collections.abc import Callable

from bevel.accounting.ledger.entries import Charge
from bevel.accounting.ledger.event_json import event_from_json
from bevel.accounting.ledger.header import Budget
from bevel.accounting.ledger.spent import epsilon_of
from bevel.accounting.ledger.totals import LedgerTotals, event_of_text
from bevel.accounting.mixture_events import MixtureDpEvent
from bevel.errors import StopRunError

Counts = collections.Counter[str]


class Allowance:
    """Answers whether a charge is within the budget, mostly without any accounting.

    When steps of one kind are charged one by one, the most of them that fit are found once, by
    bisection; up to there, nothing is computed. That is sound because a part of a composition never
    costs more than all of it.
    """

    def __init__(self, budget: Budget, relation: str) -> None:
        self.budget, self.relation = budget, relation
        self._cleared: Counts = collections.Counter()

    def check(self, books: LedgerTotals, charge: Charge) -> None:
        """Raises if the books with one more charge would cost more than the budget."""
        total = books.events(with_charge=charge)
        if total <= self._cleared:
            return
        if not self._fits(total):
            raise StopRunError(
                f"charging steps {charge.first} to {charge.stop} of run {charge.run!r} would spend "
                f"epsilon {self._cost(total):.4g} at delta {self.budget.delta:g}, and the budget "
                f"is {self.budget}. Nothing was charged: release none of these steps, and stop."
            )
        self._cleared = total
        added = total - books.events()
        if books.restates(charge) or any(_by_sampling(event) for event in added):
            return  # no more of these will come, or to look ahead would take minutes

        def most(coarse: bool) -> int:
            return largest(lambda more: self._fits(total + _times(added, more), coarse))

        # Coarse accounting finds nearly all that fit in a tenth of the time; the rest is for later.
        self._cleared = total + _times(added, most(coarse=True) or most(coarse=False))

    def _cost(self, counts: Counts, coarse: bool = False) -> float:
        return epsilon_of(counts, self.budget.delta, self.relation, coarse=coarse)

    def _fits(self, counts: Counts, coarse: bool = False) -> bool:
        return self._cost(counts, coarse) <= self.budget.epsilon


def _by_sampling(event: str) -> bool:
    return isinstance(event_from_json(event_of_text(event)), MixtureDpEvent)


def _times(counts: Counts, factor: int) -> Counts:
    return collections.Counter({event: factor * count for event, count in counts.items()})


def largest(fits: Callable[[int], bool], limit: int = 1 << 40) -> int:
    """The largest number below `limit` that fits, 0 being known to fit."""
    low, high = 0, 1
    while high < limit and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
