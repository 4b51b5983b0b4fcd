"""Chooses an accountant for an event, and converts the noise multiplier to its convention.

An event's noise multiplier is relative to the bound on one record's contribution. Under
add-or-remove and replace-special, that bound is the sensitivity. Under replace-one the sensitivity
is twice the bound, and dp-accounting's accountants use different conventions:

| accountant | noise multiplier is relative to               | under replace-one bevel passes |
| ---------- | --------------------------------------------- | ------------------------------ |
| PLD        | the bound for one record, doubled internally  | the event unchanged            |
| RDP        | the sensitivity under the relation            | the event with half the noise  |
"""

import functools
import math
from collections.abc import Callable, Sequence

import dp_accounting
from dp_accounting import DpEvent, NeighboringRelation, PrivacyAccountant
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from bevel.accounting.divergences import CachedRdpAccountant
from bevel.accounting.loss_distributions import CachedPLDAccountant, rounding_of_many
from bevel.accounting.mixture_events import MixtureDpEvent
from bevel.errors import FixArgumentsError

AccountantFn = Callable[..., PrivacyAccountant]

REPLACE_ONE = NeighboringRelation.REPLACE_ONE

# Rounding of privacy losses: dp-accounting's default. It never understates epsilon.
INTERVAL = 1e-4
# dp-accounting computes exp(interval), which must not overflow.
LARGEST_INTERVAL = 500.0
# Integer orders need no infinite series. They are enough for a rough estimate of epsilon.
FEW_ORDERS = (*range(2, 33), 40, 48, 64, 96, 128, 256, 512)


def composed_accountant(
    event: DpEvent, relation: NeighboringRelation, accountant_fn: AccountantFn | None = None
) -> PrivacyAccountant:
    """Returns an accountant that has composed `event`.

    Uses `accountant_fn` if it is given, and otherwise the tightest accountant that supports the
    event. Recent results are cached, so several queries about one event compose it once.
    """
    event = _without_idle_sampling(event, relation)
    if isinstance(event, MixtureDpEvent):
        raise FixArgumentsError(
            f"no accountant supports {type(event).__name__}, because it has no closed form. bevel "
            "bounds it by Monte Carlo sampling: leave out accountant_fn."
        )
    try:
        return _cached(event, relation, accountant_fn)
    except TypeError as error:  # events that contain lists are not hashable
        if "unhashable" not in str(error):
            raise
        return _composed(event, relation, accountant_fn)


def _composed(
    event: DpEvent, relation: NeighboringRelation, accountant_fn: AccountantFn | None
) -> PrivacyAccountant:
    if accountant_fn is None:
        accountant = default_accountant(event, relation)
    else:
        accountant = accountant_fn(neighboring_relation=relation)
    return accountant.compose(_converted_for(event, accountant))


_cached = functools.lru_cache(maxsize=8)(_composed)


def _converted_for(event: DpEvent, accountant: PrivacyAccountant) -> DpEvent:
    """Converts `event` to the noise convention of `accountant`. Raises if it is not supported."""
    if accountant.neighboring_relation is REPLACE_ONE and not isinstance(accountant, PLDAccountant):
        if not isinstance(accountant, RdpAccountant):
            raise FixArgumentsError(
                f"{type(accountant).__name__} under REPLACE_ONE: bevel does not know whether its "
                "noise multiplier is relative to the bound for one record or to twice that bound. "
                "Use dp_accounting.pld.PLDAccountant or dp_accounting.rdp.RdpAccountant."
            )
        event = with_half_the_noise(event)
    if not accountant.supports(event):
        raise FixArgumentsError(
            f"{type(accountant).__name__} has no bound for {event} under "
            f"{accountant.neighboring_relation.name}. Use another accountant, relation or sampler."
        )
    return event


def _without_idle_sampling(event: DpEvent, relation: NeighboringRelation) -> DpEvent:
    """Removes sampling that no accountant uses: of zCDP, and of a mechanism that is not private.

    A step that uses a batch in place of all records costs at most as much, if sampling does not
    depend on the number of records, or the relation keeps that number.
    """
    match event:
        case dp_accounting.SelfComposedDpEvent(event=inner, count=count):
            return dp_accounting.SelfComposedDpEvent(_without_idle_sampling(inner, relation), count)
        case dp_accounting.ComposedDpEvent(events=inners):
            # A tuple, because an event with a list cannot be cached.
            return dp_accounting.ComposedDpEvent(
                tuple(_without_idle_sampling(e, relation) for e in inners)
            )
        case RepeatAndSelectDpEvent(event=inner, mean=mean, shape=shape):
            return RepeatAndSelectDpEvent(_without_idle_sampling(inner, relation), mean, shape)
        case dp_accounting.PoissonSampledDpEvent(event=inner, sampling_probability=prob):
            idle = isinstance(inner, dp_accounting.ZCDpEvent | dp_accounting.NonPrivateDpEvent)
            if idle:
                return inner if prob > 0 else dp_accounting.NoOpDpEvent()
        case dp_accounting.SampledWithoutReplacementDpEvent(event=inner):
            if isinstance(inner, dp_accounting.NonPrivateDpEvent):
                return inner
            keeps_number = relation is not NeighboringRelation.ADD_OR_REMOVE_ONE
            if isinstance(inner, dp_accounting.ZCDpEvent) and keeps_number:
                return inner
    return event


def with_half_the_noise(event: DpEvent) -> DpEvent:
    """Divides the noise by 2: replacing one record doubles the sensitivity it is relative to."""
    match event:
        case dp_accounting.NoOpDpEvent() | dp_accounting.NonPrivateDpEvent():
            return event
        case dp_accounting.GaussianDpEvent(noise_multiplier=noise):
            return dp_accounting.GaussianDpEvent(noise / 2)
        case dp_accounting.ZCDpEvent(rho=rho, xi=0):
            return dp_accounting.ZCDpEvent(rho=4 * rho)
        case dp_accounting.SelfComposedDpEvent(event=inner, count=count):
            return dp_accounting.SelfComposedDpEvent(with_half_the_noise(inner), count)
        case dp_accounting.ComposedDpEvent(events=inners):
            return dp_accounting.ComposedDpEvent([with_half_the_noise(e) for e in inners])
        case RepeatAndSelectDpEvent(event=inner, mean=mean, shape=shape):
            return RepeatAndSelectDpEvent(with_half_the_noise(inner), mean, shape)
        case dp_accounting.PoissonSampledDpEvent(sampling_probability=prob, event=inner):
            return dp_accounting.PoissonSampledDpEvent(prob, with_half_the_noise(inner))
        case dp_accounting.SampledWithoutReplacementDpEvent(
            source_dataset_size=size, sample_size=sample, event=inner
        ):
            half = with_half_the_noise(inner)
            return dp_accounting.SampledWithoutReplacementDpEvent(size, sample, half)
        case dp_accounting.SampledWithReplacementDpEvent():
            return event  # no accountant supports it
        case dp_accounting.TruncatedSubsampledGaussianDpEvent():
            return event  # only PLD supports it
    raise FixArgumentsError(
        f"{event} under REPLACE_ONE: bevel does not know what its noise is relative to, so the RDP "
        "accountant cannot be used. Use the PLD accountant."
    )


def default_accountant(event: DpEvent, relation: NeighboringRelation) -> PrivacyAccountant:
    """Returns a PLD accountant if it supports the event, because PLD is tighter; otherwise RDP."""
    event = _without_idle_sampling(event, relation)
    pld = CachedPLDAccountant(relation, interval_for(event, relation))
    if pld.supports(event):
        return pld
    rdp = CachedRdpAccountant(relation)
    if rdp.supports(event):
        return rdp
    raise FixArgumentsError(
        f"no accountant has a bound for {event} under {relation.name}. Use another relation or "
        "another sampler."
    )


def interval_for(event: DpEvent, relation: NeighboringRelation) -> float:
    """Returns the rounding of privacy losses: coarser where losses are so large it hardly matters.

    PLD needs time and memory in proportion to (range of losses) / interval, which would be minutes
    for events with almost no noise.
    """
    approximation = rdp_approximation(event, relation)
    noise, rdp = _least_noise(approximation), RdpAccountant(orders=(2.0,))
    loss = float(rdp.compose(approximation).rdp[0]) if rdp.supports(approximation) else 0.0
    if not math.isfinite(loss):
        loss = 0.0  # epsilon is infinite at any rounding, so it does not need a coarser one
    interval = INTERVAL * max(1.0, (0.5 / noise) ** 2 if noise > 0 else 1.0, loss / 50)
    return min(interval * rounding_of_many(event), LARGEST_INTERVAL)


def _least_noise(event: DpEvent, count: int = 1) -> float:
    match event:
        case dp_accounting.GaussianDpEvent(noise_multiplier=noise):
            return noise / count**0.5  # PLD composes Gaussians into one
        case dp_accounting.SelfComposedDpEvent(event=inner, count=more):
            return _least_noise(inner, count * more)
        case dp_accounting.PoissonSampledDpEvent(event=inner) | RepeatAndSelectDpEvent(event=inner):
            return _least_noise(inner)
        case dp_accounting.ComposedDpEvent(events=inners):
            return min((_least_noise(inner, count) for inner in inners), default=1.0)
    return 1.0


def rdp_approximation(event: DpEvent, relation: NeighboringRelation) -> DpEvent:
    """Returns an event of roughly the same privacy that RDP supports under add-or-remove.

    Use it for initial guesses only. It is not a bound.
    """
    event = _without_idle_sampling(event, relation)
    match event:
        case dp_accounting.SelfComposedDpEvent(event=inner, count=count):
            return dp_accounting.SelfComposedDpEvent(rdp_approximation(inner, relation), count)
        case dp_accounting.ComposedDpEvent(events=inners):
            return dp_accounting.ComposedDpEvent([rdp_approximation(e, relation) for e in inners])
        case RepeatAndSelectDpEvent(event=inner, mean=mean, shape=shape):
            return RepeatAndSelectDpEvent(rdp_approximation(inner, relation), mean, shape)
        case dp_accounting.TruncatedSubsampledGaussianDpEvent(
            sampling_probability=prob, noise_multiplier=noise
        ):
            poisson = dp_accounting.PoissonSampledDpEvent(
                prob, dp_accounting.GaussianDpEvent(noise)
            )
            return rdp_approximation(poisson, relation)
        case dp_accounting.SampledWithoutReplacementDpEvent(
            source_dataset_size=size, sample_size=sample, event=inner
        ):
            poisson = dp_accounting.PoissonSampledDpEvent(sample / size, inner)
            return rdp_approximation(poisson, relation)
    return with_half_the_noise(event) if relation is REPLACE_ONE else event


def cheaper_accountants(
    event: DpEvent, relation: NeighboringRelation, accountant_fn: AccountantFn | None
) -> Sequence[AccountantFn]:
    """Returns accountants for the first stages of a search, the cheapest first."""
    kind = accountant_fn or type(default_accountant(event, relation))
    if kind in (PLDAccountant, CachedPLDAccountant):
        interval = interval_for(event, relation) if accountant_fn is None else INTERVAL
        return [_pld_with(10 * interval), _pld_with(3 * interval)]
    return [rdp_with_few_orders] if kind in (RdpAccountant, CachedRdpAccountant) else []


@functools.cache  # epsilons are cached by accountant_fn, so it must be the same object each time
def _pld_with(interval: float) -> AccountantFn:
    return functools.partial(CachedPLDAccountant, interval=min(interval, LARGEST_INTERVAL))


def rdp_with_few_orders(neighboring_relation: NeighboringRelation) -> PrivacyAccountant:
    return RdpAccountant(FEW_ORDERS, neighboring_relation)
