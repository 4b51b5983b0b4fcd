"""Computes the privacy cost of an event: epsilon, delta, and epsilon after each step."""

import functools
from collections.abc import Callable

import numpy as np
from dp_accounting import DpEvent, NeighboringRelation, PrivacyAccountant
from dp_accounting.rdp import RdpAccountant

from bevel.accounting.accountants import AccountantFn, cheaper_accountants, composed_accountant
from bevel.accounting.arguments import Relation, check_budget, relation_of
from bevel.accounting.mixture_events import MixtureDpEvent
from bevel.accounting.monte_carlo import MonteCarlo, sampled_losses
from bevel.checks import finite_number, function, instance, whole_number
from bevel.errors import FixArgumentsError


def epsilon(
    event: DpEvent,
    *,
    delta: float,
    neighboring_relation: Relation,
    accountant_fn: AccountantFn | None = None,
    monte_carlo: MonteCarlo | None = None,
) -> float:
    """Returns the epsilon of `event` at `delta`, or infinity if the event is not private.

    Results are cached.

    Args:
      neighboring_relation: has no default, because the same event costs more under replace-one.
      accountant_fn: called with `neighboring_relation=...` to create an accountant, such as
        `PLDAccountant` or `RdpAccountant` of dp-accounting. The default is the tightest accountant
        that supports the event. The event's noise is always relative to the bound for one record
        (see accountants.py).
      monte_carlo: settings for events that are bounded by Monte Carlo sampling.
    """
    delta = finite_number("delta", delta, "well below one over the number of examples", 0, 1)
    check_budget(delta=delta)
    relation = _checked(event, neighboring_relation, accountant_fn, monte_carlo)
    if isinstance(event, MixtureDpEvent):
        _check_sampling(event, relation, accountant_fn)
        return sampled_losses(event, monte_carlo or MonteCarlo.for_delta(delta)).epsilon(delta)
    try:
        return _cached_epsilon(event, delta, relation, accountant_fn)
    except TypeError as error:  # events that contain lists are not hashable
        if "unhashable" not in str(error):
            raise
        return _epsilon(event, delta, relation, accountant_fn)


def _checked(
    event: DpEvent,
    neighboring_relation: Relation,
    accountant_fn: AccountantFn | None,
    monte_carlo: MonteCarlo | None,
) -> NeighboringRelation:
    """Checks what `epsilon` and `delta` have in common, and returns the relation."""
    instance("event", event, DpEvent, "a DpEvent, such as bevel.accounting.dpsgd_event(...)")
    if accountant_fn is not None:
        function("accountant_fn", accountant_fn, "pass an accountant of dp-accounting, or None")
    instance("monte_carlo", monte_carlo, MonteCarlo | None, "MonteCarlo(...), or None")
    return relation_of(neighboring_relation)


def _epsilon(
    event: DpEvent, delta: float, relation: NeighboringRelation, accountant_fn: AccountantFn | None
) -> float:
    accountant = composed_accountant(event, relation, accountant_fn)
    _check_rdp_precision(accountant)
    return float(accountant.get_epsilon(delta))


_cached_epsilon = functools.lru_cache(maxsize=4096)(_epsilon)


def delta(
    event: DpEvent,
    *,
    epsilon: float,
    neighboring_relation: Relation,
    accountant_fn: AccountantFn | None = None,
    monte_carlo: MonteCarlo | None = None,
) -> float:
    """Returns the delta of `event` at `epsilon`. Monte Carlo bounds need `monte_carlo`."""
    epsilon = finite_number("epsilon", epsilon, "such as 3", 0)
    relation = _checked(event, neighboring_relation, accountant_fn, monte_carlo)
    if isinstance(event, MixtureDpEvent):
        _check_sampling(event, relation, accountant_fn)
        if monte_carlo is None:
            raise FixArgumentsError(
                f"{type(event).__name__} is bounded by Monte Carlo, and the samples needed depend "
                "on delta: pass monte_carlo=MonteCarlo.for_delta(...) with the delta you expect."
            )
        return sampled_losses(event, monte_carlo).delta(epsilon)
    accountant = composed_accountant(event, relation, accountant_fn)
    _check_rdp_precision(accountant)
    return float(accountant.get_delta(epsilon))


def _check_rdp_precision(accountant: PrivacyAccountant) -> None:
    """Raises if rounding made RDP values negative: dp-accounting would report epsilon = 0."""
    if isinstance(accountant, RdpAccountant) and (accountant.rdp < 0).any():
        raise FixArgumentsError(
            "the Rényi divergences are so small that rounding makes them negative, and the RDP "
            "accountant would report epsilon = 0. Use the PLD accountant, or less noise."
        )


def _check_sampling(
    event: DpEvent, relation: NeighboringRelation, accountant_fn: AccountantFn | None
) -> None:
    """Raises unless the sampling bound of an event is proven under the relation."""
    if relation is NeighboringRelation.REPLACE_ONE:
        raise FixArgumentsError(
            f"{type(event).__name__} under REPLACE_ONE: its bound is proven only for a record "
            "that is present or absent. Use ADD_OR_REMOVE_ONE or REPLACE_SPECIAL."
        )
    if accountant_fn is not None:
        composed_accountant(event, relation, accountant_fn)  # raises, with the reason


def epsilon_after_each_step(
    make_event: Callable[[int], DpEvent],
    iterations: int,
    *,
    delta: float,
    neighboring_relation: Relation,
    accountant_fn: AccountantFn | None = None,
    monte_carlo: MonteCarlo | None = None,
    points: int = 32,
) -> np.ndarray:
    """Returns epsilon after 1, 2, ..., `iterations` steps; `make_event(t)` is the event of t steps.

    Epsilon is computed at up to `points` steps, including the last one. A step in between gets the
    epsilon of the next computed step, which is higher than its own by about epsilon / points and
    never lower. By default, steps before the last one use a coarser rounding.
    """
    function("make_event", make_event, "pass a function from a number of steps to their event")
    why = "The result has a number for each."
    total = whole_number("iterations", iterations, 1, 2**27, why)
    relation = relation_of(neighboring_relation)
    cost = functools.partial(
        epsilon, delta=delta, neighboring_relation=relation, monte_carlo=monte_carlo
    )
    last = make_event(total)
    coarse = accountant_fn
    if accountant_fn is None and not isinstance(last, MixtureDpEvent):
        coarse = cheaper_accountants(last, relation, None)[0]
    # Epsilon grows roughly as the square root of the steps, so this grid is about even in epsilon.
    fractions = np.arange(1, whole_number("points", points, 1, 10**6, why) + 1) / points
    grid = np.unique(np.append(np.ceil(total * fractions**2), total)).astype(int)
    costs = [cost(make_event(int(step)), accountant_fn=coarse) for step in grid[:-1]]
    costs.append(cost(last, accountant_fn=accountant_fn))
    # Fewer steps never cost more, so a bound for a later step also holds for an earlier one.
    bounds = np.minimum.accumulate(costs[::-1])[::-1]
    return bounds[np.searchsorted(grid, np.arange(1, total + 1))]
