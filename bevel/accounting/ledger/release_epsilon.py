"""The epsilon that is stated at a release, at a small cost for each release."""

import collections
import math

from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    NeighboringRelation,
    SelfComposedDpEvent,
)

from bevel.accounting.accountants import default_accountant
from bevel.accounting.arguments import relation_of
from bevel.accounting.epsilon_curve import (
    MOST_REMAINDERS,
    composed_epsilon,
    gaussian_epsilon,
    only_gaussian,
)
from bevel.accounting.ledger.spent import composed_events, has_noise
from bevel.accounting.loss_distributions import CachedPLDAccountant, event_counts
from bevel.accounting.mixture_events import MixtureDpEvent
from bevel.accounting.spending import epsilon
from bevel.errors import FixArgumentsError

Counts = collections.Counter[str]


def release_epsilon(
    counts: Counts, growing: DpEvent | None, stride: int, delta: float, relation: str
) -> float:
    """Returns `epsilon_of(counts, delta, relation)`, or up to `TOLERANCE` more, but never less.

    The result depends on the arguments alone; earlier calls affect only the time. The count of
    `growing` rises from release to release, and `stride_of` chooses the stride. One Gaussian, and
    events that the RDP accountant composes, take milliseconds. For what has no close bound, this
    computes the exact epsilon, once for charges that do not change.
    """
    if not has_noise(counts):
        return math.inf
    kind, total, bounded = relation_of(relation), 0.0, False
    events = composed_events(counts, relation)
    for event in events:
        share = delta / len(events)
        bound = None if bounded else _bound(event, growing, stride, share, kind)
        bounded = bounded or bound is not None  # one of them, because each may be too high
        if bound is None:
            bound = epsilon(event, delta=share, neighboring_relation=kind)
        total += bound
    return total


def stride_of(each: int, most: int) -> int:
    """Returns a stride for a count that rises by `each` at every release, up to `most`."""
    releases = -(-most // each)
    return each * min(MOST_REMAINDERS, math.isqrt(releases - 1) + 1)


def _bound(
    event: DpEvent,
    growing: DpEvent | None,
    stride: int,
    delta: float,
    relation: NeighboringRelation,
) -> float | None:
    if isinstance(event, MixtureDpEvent):
        return None
    try:
        accountant = default_accountant(event, relation)
    except FixArgumentsError:
        return None
    if not isinstance(accountant, CachedPLDAccountant):
        return None
    single, interval = event_counts(event), accountant.interval
    noise, gaussians_grow = only_gaussian(single), isinstance(growing, GaussianDpEvent)
    if noise is not None and (gaussians_grow or growing is None):
        return gaussian_epsilon(noise, delta, relation, interval)
    if gaussians_grow:
        # Composed Gaussians are one event with less noise. The others are the part to keep.
        growing, stride = next((e for e in single if isinstance(e, GaussianDpEvent)), None), 2
    if growing is None or growing not in single:
        return None
    count = single.pop(growing)
    fixed = ComposedDpEvent(tuple(SelfComposedDpEvent(e, n) for e, n in single.items()))
    return composed_epsilon(fixed, growing, count, delta, relation, interval, stride)
