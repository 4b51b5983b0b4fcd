"""The epsilon that is stated at a release, at a small cost for each release."""

import collections
import math

from dp_accounting import ComposedDpEvent, DpEvent, SelfComposedDpEvent

from bevel.accounting.accountants import default_accountant
from bevel.accounting.arguments import relation_of
from bevel.accounting.epsilon_curve import (
    MOST_REMAINDERS,
    composed_epsilon,
    gaussian_epsilon,
    only_gaussian,
)
from bevel.accounting.ledger.spent import composed_events, epsilon_of, has_noise
from bevel.accounting.loss_distributions import CachedPLDAccountant, event_counts
from bevel.accounting.mixture_events import MixtureDpEvent
from bevel.errors import FixArgumentsError

Counts = collections.Counter[str]


def release_epsilon(
    counts: Counts, growing: DpEvent | None, stride: int, delta: float, relation: str
) -> float:
    """Returns `epsilon_of(counts, delta, relation)`, or up to `TOLERANCE` more, but never less.

    The result depends on the arguments alone; earlier calls affect only the time. The count of
    `growing` rises from release to release, and `stride_of` chooses the stride. One Gaussian, and
    events that the RDP accountant composes, take milliseconds. If there is no close bound,
    `epsilon_of` computes the exact epsilon.
    """
    bound = _bound(counts, growing, stride, delta, relation)
    return epsilon_of(counts, delta, relation) if bound is None else bound


def stride_of(each: int, most: int) -> int:
    """Returns a stride for a count that rises by `each` at every release, up to `most`."""
    releases = -(-most // each)
    return each * min(MOST_REMAINDERS, math.isqrt(releases - 1) + 1)


def _bound(
    counts: Counts, growing: DpEvent | None, stride: int, delta: float, relation: str
) -> float | None:
    if not counts or not has_noise(counts):
        return None
    events = composed_events(counts, relation)
    if len(events) > 1 or isinstance(events[0], MixtureDpEvent):
        return None
    try:
        accountant = default_accountant(events[0], relation_of(relation))
    except FixArgumentsError:
        return None
    if not isinstance(accountant, CachedPLDAccountant):
        return None
    single, interval = event_counts(events[0]), accountant.interval
    noise = only_gaussian(single)
    if noise is not None:
        return gaussian_epsilon(noise, delta, relation_of(relation), interval)
    if growing is None or growing not in single:  # Gaussians among others are one event
        return None
    count = single.pop(growing)
    fixed = ComposedDpEvent(tuple(SelfComposedDpEvent(e, n) for e, n in single.items()))
    return composed_epsilon(fixed, growing, count, delta, relation_of(relation), interval, stride)
