"""Which accountant takes which event, and what it takes the noise to be relative to.

An event's noise multiplier is relative to the bound of one record's contribution. Under
add-or-remove and replace-special that is the sensitivity. Under replace-one the sensitivity is
twice the bound, and dp-accounting's accountants differ:

| accountant | takes the noise relative to            | so under replace-one bevel gives it |
| ---------- | -------------------------------------- | ----------------------------------- |
| PLD        | the bound of one record, doubled inside | the event as it is                  |
| RDP        | the sensitivity under the relation      | the event with half the noise       |
"""

import functools
import math
from collections.abc import Callable, Sequence

import dp_accounting
from dp_accounting import DpEvent, NeighboringRelation, PrivacyAccountant
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from bevel.accounting.mixture_events import MixtureDpEvent
from bevel.errors import FixArgumentsError

AccountantFn = Callable[..., PrivacyAccountant]

REPLACE_ONE = NeighboringRelation.REPLACE_ONE

# Rounding of privacy losses: dp-accounting's default. It always rounds up, so it is never unsafe.
INTERVAL = 1e-4
# dp-accounting takes the exponential of it.
LARGEST_INTERVAL = 500.0
# Orders that need no infinite series: enough to find roughly what an epsilon will be.
FEW_ORDERS = (*range(2, 33), 40, 48, 64, 96, 128, 256, 512)


def composed_accountant(
    event: DpEvent, relation: NeighboringRelation, accountant_fn: AccountantFn | None = None
) -> PrivacyAccountant:
    """An accountant that has composed `event`: the given one, or the tightest that takes it.

    The last few are kept, so asking for several epsilons of one event composes it once.
    """
    if isinstance(event, MixtureDpEvent):
        raise FixArgumentsError(
            f"{type(event).__name__} has no closed form and no accountant: it is bounded by "
            "sampling. Leave accountant_fn out."
        )
    try:
        return _cached(event, relation, accountant_fn)
    except TypeError as error:  # events with lists have no hash
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
    return accountant.compose(_as_taken(event, accountant))


_cached = functools.lru_cache(maxsize=8)(_composed)


def _as_taken(event: DpEvent, accountant: PrivacyAccountant) -> DpEvent:
    """`event`, in the terms of `accountant` under its relation. Raises if it cannot be taken."""
    if accountant.neighboring_relation is REPLACE_ONE and not isinstance(accountant, PLDAccountant):
        if not isinstance(accountant, RdpAccountant):
            raise FixArgumentsError(
                f"{type(accountant).__name__} under REPLACE_ONE: it is not known whether it takes "
                "noise relative to the bound of one record or to twice that. Use "
                "dp_accounting.pld.PLDAccountant or dp_accounting.rdp.RdpAccountant."
            )
        event = with_half_the_noise(event)
    if not accountant.supports(event):
        raise FixArgumentsError(
            f"{type(accountant).__name__} has no bound for {event} under "
            f"{accountant.neighboring_relation.name}: take another accountant, relation or sampler."
        )
    return event


def with_half_the_noise(event: DpEvent) -> DpEvent:
    """The same mechanism, with noise relative to a sensitivity of twice the bound of one record."""
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
        case dp_accounting.PoissonSampledDpEvent(sampling_probability=chance, event=inner):
            return dp_accounting.PoissonSampledDpEvent(chance, with_half_the_noise(inner))
        case dp_accounting.SampledWithoutReplacementDpEvent(
            source_dataset_size=size, sample_size=sample, event=inner
        ):
            half = with_half_the_noise(inner)
            return dp_accounting.SampledWithoutReplacementDpEvent(size, sample, half)
        case dp_accounting.SampledWithReplacementDpEvent():
            return event  # no accountant takes it
        case dp_accounting.TruncatedSubsampledGaussianDpEvent():
            return event  # only PLD takes it
    raise FixArgumentsError(
        f"{event} under REPLACE_ONE with the RDP accountant: it is not known what its noise is "
        "relative to. Use the PLD accountant."
    )


def default_accountant(event: DpEvent, relation: NeighboringRelation) -> PrivacyAccountant:
    """PLD where it takes the event, since it is the tighter one; otherwise RDP."""
    pld = PLDAccountant(relation, interval_for(event, relation))
    if pld.supports(event):
        return pld
    rdp = RdpAccountant(neighboring_relation=relation)
    if rdp.supports(event):
        return rdp
    raise FixArgumentsError(
        f"no accountant has a bound for {event} under {relation.name}: take another relation or "
        "another sampler."
    )


def interval_for(event: DpEvent, relation: NeighboringRelation) -> float:
    """The rounding of privacy losses: coarser where losses are so large that no one would see it.

    PLD takes time and memory in (range of losses) / interval: with next to no noise, minutes.
    """
    noise, loss = _noise_and_loss(event, relation)
    wanted = INTERVAL * max(1.0, (0.5 / noise) ** 2 if noise > 0 else 1.0, loss / 50)
    return min(wanted, LARGEST_INTERVAL)


def _noise_and_loss(event: DpEvent, relation: NeighboringRelation) -> tuple[float, float]:
    """The least noise that a step of `event` has, and roughly the privacy loss of all of it."""
    alike = like_for_rdp(event, relation)
    rdp = RdpAccountant(orders=(2.0,))
    loss = float(rdp.compose(alike).rdp[0]) if rdp.supports(alike) else 0.0
    # A part without privacy makes all of it infinite, however the other parts are rounded.
    return _least_noise(alike), loss if math.isfinite(loss) else 0.0


def _least_noise(event: DpEvent, count: int = 1) -> float:
    match event:
        case dp_accounting.GaussianDpEvent(noise_multiplier=noise):
            return noise / count**0.5  # PLD composes Gaussians into one
        case dp_accounting.SelfComposedDpEvent(event=inner, count=more):
            return _least_noise(inner, count * more)
        case dp_accounting.PoissonSampledDpEvent(event=inner):
            return _least_noise(inner)
        case dp_accounting.ComposedDpEvent(events=inners):
            return min((_least_noise(inner, count) for inner in inners), default=1.0)
    return 1.0


def like_for_rdp(event: DpEvent, relation: NeighboringRelation) -> DpEvent:
    """An event that RDP takes under add-or-remove, of roughly the same privacy.

    For first guesses only: no bound is ever taken from it.
    """
    match event:
        case dp_accounting.SelfComposedDpEvent(event=inner, count=count):
            return dp_accounting.SelfComposedDpEvent(like_for_rdp(inner, relation), count)
        case dp_accounting.ComposedDpEvent(events=inners):
            return dp_accounting.ComposedDpEvent([like_for_rdp(e, relation) for e in inners])
        case dp_accounting.TruncatedSubsampledGaussianDpEvent(
            sampling_probability=chance, noise_multiplier=noise
        ):
            alike = dp_accounting.PoissonSampledDpEvent(
                chance, dp_accounting.GaussianDpEvent(noise)
            )
            return like_for_rdp(alike, relation)
        case dp_accounting.SampledWithoutReplacementDpEvent(
            source_dataset_size=size, sample_size=sample, event=inner
        ):
            return like_for_rdp(dp_accounting.PoissonSampledDpEvent(sample / size, inner), relation)
    return with_half_the_noise(event) if relation is REPLACE_ONE else event


def cheaper_accountants(
    event: DpEvent, relation: NeighboringRelation, accountant_fn: AccountantFn | None
) -> Sequence[AccountantFn]:
    """Accountants to search with before the given one has the last word, the cheapest first."""
    kind = accountant_fn
    if accountant_fn is None:
        kind = type(default_accountant(event, relation))
    if kind is PLDAccountant:
        interval = interval_for(event, relation) if accountant_fn is None else INTERVAL
        return [_pld_with(10 * interval), _pld_with(3 * interval)]
    return [rdp_with_few_orders] if kind is RdpAccountant else []


@functools.cache  # so that results kept by accountant are found again
def _pld_with(interval: float) -> AccountantFn:
    return functools.partial(PLDAccountant, value_discretization_interval=interval)


def rdp_with_few_orders(neighboring_relation: NeighboringRelation) -> PrivacyAccountant:
    return RdpAccountant(FEW_ORDERS, neighboring_relation)
