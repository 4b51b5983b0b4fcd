"""Enforces a budget: a charge that would exceed it is refused before it is written."""

import bisect
import collections
import functools
import json
from collections.abc import Callable

import numpy as np

from bevel.accounting.accountants import rdp_approximation, rdp_with_few_orders
from bevel.accounting.arguments import relation_of
from bevel.accounting.ledger.entries import Charge
from bevel.accounting.ledger.event_json import event_from_json
from bevel.accounting.ledger.header import Budget
from bevel.accounting.ledger.spent import composed_events, epsilon_of
from bevel.accounting.ledger.totals import LedgerTotals
from bevel.accounting.mixture_events import MixtureDpEvent
from bevel.accounting.rounding import shown_epsilon
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

    def check(self, totals: LedgerTotals, charge: Charge, *, look_ahead: bool = True) -> None:
        """Raises if `totals` with this additional charge would exceed the budget.

        Without `look_ahead`, does not find out how often the charge could be repeated.
        """
        # The counts of all other events are at most those known to fit, once anything is.
        changed = totals.changes(charge).items()
        known = self._known_to_fit
        if known and all(totals.count(event) + more <= known[event] for event, more in changed):
            return
        total = totals.events(with_charge=charge)
        if not self._fits(total):
            raise StopRunError(
                f"charging steps {charge.first} to {charge.stop} of run {charge.run!r} would spend "
                f"epsilon {shown_epsilon(self._cost(total))} at delta {self.budget.delta:g}, but "
                f"the budget is {self.budget}. Nothing was charged: do not release these steps, "
                "and stop."
            )
        if any(more < 0 for _, more in changed):  # until it is charged, what it replaces is spent
            self._known_to_fit = collections.Counter()
            return
        self._known_to_fit = total
        if not look_ahead:
            return
        added = total - totals.events()
        events = [event_from_json(json.loads(event)) for event in added]
        if totals.restates(charge) or any(isinstance(event, MixtureDpEvent) for event in events):
            return  # the event will not be repeated, or looking ahead would take minutes

        guess = self._guessed_repeats(total, added)
        # Coarse accounting finds almost all repeats in a tenth of the time. Later calls find more.
        for coarse in (True, False):
            fits = functools.partial(self._fits_repeated, total, added, coarse)
            fitting = _roughly_most(fits, guess)
            if fitting:
                break
        self._known_to_fit = total + _repeated(added, fitting)

    def _fits_repeated(self, total: Counts, added: Counts, coarse: bool, times: int) -> bool:
        return self._fits(total + _repeated(added, times), coarse)

    def _guessed_repeats(self, total: Counts, added: Counts) -> int:
        """How many repeats fit according to RDP with few orders, in milliseconds. Not a bound."""
        spent, each = (self._divergences(counts) for counts in (total, added))
        if spent is None or each is None:
            return 1
        accountant = rdp_with_few_orders(relation_of("ADD_OR_REMOVE_ONE"))

        def fits(more: int) -> bool:
            accountant._rdp = spent + more * each
            return accountant.get_epsilon(self.budget.delta) <= self.budget.epsilon

        exponent = bisect.bisect_left(range(40), True, key=lambda k: not fits(1 << k))
        low, high = (1 << exponent) >> 1, 1 << exponent
        return low + bisect.bisect_left(range(low + 1, high), True, key=lambda k: not fits(k))

    def _divergences(self, counts: Counts) -> np.ndarray | None:
        event = composed_events(counts, self.relation)
        accountant = rdp_with_few_orders(relation_of("ADD_OR_REMOVE_ONE"))
        for part in event:
            approximation = rdp_approximation(part, relation_of(self.relation))
            if not accountant.supports(approximation):
                return None
            accountant.compose(approximation)
        return accountant.rdp

    def _cost(self, counts: Counts, coarse: bool = False) -> float:
        return epsilon_of(counts, self.budget.delta, self.relation, coarse=coarse)

    def _fits(self, counts: Counts, coarse: bool = False) -> bool:
        return self._cost(counts, coarse) <= self.budget.epsilon


def _roughly_most(fits: Callable[[int], bool], guess: int) -> int:
    """A number of repeats that fits, within 2 % of the largest, or 0. Starts at `guess`."""
    low, high = 0, max(1, guess)
    while fits(high):
        low, high = high, high + max(1, high // 4)
        if low >= MOST_REPEATS:
            return low
    if low == 0:
        while high > 1 and not low:
            probe = high - max(1, high // 4)
            low, high = (probe, high) if fits(probe) else (0, probe)
    while high - low > max(1, low // 50):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _repeated(counts: Counts, times: int) -> Counts:
    return collections.Counter({event: times * count for event, count in counts.items()})
