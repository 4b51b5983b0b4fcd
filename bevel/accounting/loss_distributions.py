"""A PLD accountant that keeps the distributions of single events, and composes many in a tree.

Almost all the time of `PLDAccountant` goes into the privacy loss distribution of one event. A run
asks again and again for the epsilon of the same events, composed more often, so these distributions
are cached. The result is that of `PLDAccountant`, up to the 1e-15 of probability that dp-accounting
rounds up when it composes. Private selections, which `PLDAccountant` does not support, are bounded
by `bevel.accounting.private_selection`.
"""

import collections
import functools
from typing import Any

from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    NeighboringRelation,
    NoOpDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.pld import PLDAccountant

from bevel.accounting.private_selection import selected

Counts = collections.Counter[DpEvent]
# Above this many different events, losses are rounded more coarsely, in proportion to the number
# and up to the limit: time per event falls, and epsilon is overstated a little more.
MANY_EVENTS, MOST_ROUNDING = 16, 16.0


class CachedPLDAccountant(PLDAccountant):
    """Composes like `PLDAccountant`. Queries about more of the same events are fast."""

    def __init__(self, neighboring_relation: NeighboringRelation, interval: float) -> None:
        super().__init__(neighboring_relation, interval)
        self.interval = interval

    def _maybe_compose(self, event: DpEvent, count: int, do_compose: bool) -> Any:
        if not do_compose:
            return super()._maybe_compose(_without_selection(event), count, do_compose)
        parts: list[Any] = [vars(self)["_pld"]]
        for single, times in event_counts(event, count).items():
            found = of_single_event(single, self.neighboring_relation, self.interval)
            self._contains_non_dp_event |= found._contains_non_dp_event
            parts.append(found._pld.self_compose(times) if times > 1 else found._pld)
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=False)
            parts = [one.compose(other) for one, other in pairs] + parts[len(parts) & ~1 :]
        self._pld = parts[0]
        return None


def event_counts(event: DpEvent, count: int = 1) -> Counts:
    """The different events of a composition, and how often each is composed.

    Gaussians are one event: composed, they are a Gaussian whose precisions add up.
    """
    counts: Counts = collections.Counter()
    _add(event, count, counts)
    gaussians = {e: n for e, n in counts.items() if isinstance(e, GaussianDpEvent)}
    if all(gaussian.noise_multiplier > 0 for gaussian in gaussians):
        precision = sum(n / e.noise_multiplier**2 for e, n in gaussians.items())
        for gaussian in gaussians:
            del counts[gaussian]
        if precision > 0:
            counts[GaussianDpEvent(precision**-0.5)] = 1
    return counts


def _add(event: DpEvent, count: int, counts: Counts) -> None:
    match event:
        case SelfComposedDpEvent(event=inner, count=more):
            _add(inner, count * more, counts)
        case ComposedDpEvent(events=inners):
            for inner in inners:
                _add(inner, count, counts)
        case NoOpDpEvent():
            pass
        case RepeatAndSelectDpEvent(event=inner, mean=mean, shape=shape):
            counts[RepeatAndSelectDpEvent(_hashable(inner), mean, shape)] += count
        case _:
            counts[event] += count


def _hashable(event: DpEvent) -> DpEvent:
    """The event with its lists as tuples."""
    match event:
        case ComposedDpEvent(events=inners):
            return ComposedDpEvent(tuple(map(_hashable, inners)))
        case SelfComposedDpEvent(event=inner, count=count):
            return SelfComposedDpEvent(_hashable(inner), count)
        case RepeatAndSelectDpEvent(event=inner, mean=mean, shape=shape):
            return RepeatAndSelectDpEvent(_hashable(inner), mean, shape)
    return event


def rounding_of_many(event: DpEvent) -> float:
    """How much more coarsely losses are rounded, because there are many different events."""
    return min(max(1.0, len(event_counts(event)) / MANY_EVENTS), MOST_ROUNDING)


@functools.lru_cache(maxsize=64)
def of_single_event(
    event: DpEvent, relation: NeighboringRelation, interval: float
) -> PLDAccountant:
    """An accountant of one event."""
    if not isinstance(event, RepeatAndSelectDpEvent):
        return PLDAccountant(relation, interval).compose(event)
    accountant = CachedPLDAccountant(relation, interval).compose(event.event)
    if not accountant._contains_non_dp_event:
        one: Any = vars(accountant)["_pld"]
        best: Any = selected(one, event.mean, event.shape, interval)
        accountant._contains_non_dp_event = best is None
        accountant._pld = one if best is None else best
    return accountant


def _without_selection(event: DpEvent) -> DpEvent:
    """The event with one run in place of each private selection: both are supported, or neither."""
    match event:
        case SelfComposedDpEvent(event=inner, count=count):
            return SelfComposedDpEvent(_without_selection(inner), count)
        case ComposedDpEvent(events=inners):
            return ComposedDpEvent([_without_selection(inner) for inner in inners])
        case RepeatAndSelectDpEvent(event=inner):
            return _without_selection(inner)
    return event
