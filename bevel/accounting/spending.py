"""What an event costs: epsilon at a delta, delta at an epsilon, and epsilon after each step."""

import functools
from collections.abc import Callable

import numpy as np
from dp_accounting import DpEvent, NeighboringRelation, PrivacyAccountant
from dp_accounting.rdp import RdpAccountant

from bevel.accounting.accountants import AccountantFn, cheaper_accountants, composed_accountant
from bevel.accounting.arguments import Relation, check_budget, relation_of
from bevel.accounting.mixture_events import MixtureDpEvent
from bevel.accounting.monte_carlo import MonteCarlo, sampled_losses
from bevel.checks import whole_number
from bevel.errors import FixArgumentsError


def epsilon(
    event: DpEvent,
    *,
    delta: float,
    neighboring_relation: Relation,
    accountant_fn: AccountantFn | None = None,
    monte_carlo: MonteCarlo | None = None,
) -> float:
    """The epsilon that `event` costs at `delta`; infinite if it is not private.

    Args:
      neighboring_relation: there is no default: the same event costs more under replace-one.
      accountant_fn: makes an accountant from `neighboring_relation=`, as `PLDAccountant` and
        `RdpAccountant` of dp-accounting do. By default the tightest one that takes the event. In
        either case the event's noise is relative to the bound of one record (accountants.py).
      monte_carlo: how to sample, for events that are bounded by sampling.

    Repeated calls are answered from memory.
    """
    check_budget(delta=delta)
    relation = relation_of(neighboring_relation)
    if isinstance(event, MixtureDpEvent):
        _check_sampling(event, relation, accountant_fn)
        return sampled_losses(event, monte_carlo or MonteCarlo.for_delta(delta)).epsilon(delta)
    try:
        return _cached_epsilon(event, delta, relation, accountant_fn)
    except TypeError as error:  # events with lists have no hash
        if "unhashable" not in str(error):
            raise
        return _epsilon(event, delta, relation, accountant_fn)


def _epsilon(
    event: DpEvent,
    delta: float,
    relation: NeighboringRelation,
    accountant_fn: AccountantFn | None,
) -> float:
    accountant = composed_accountant(event, relation, accountant_fn)
    _check_digits(accountant)
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
    """The delta that `event` costs at `epsilon`. Events bounded by sampling need `monte_carlo`."""
    if epsilon != 0:
        check_budget(epsilon=epsilon)
    relation = relation_of(neighboring_relation)
    if isinstance(event, MixtureDpEvent):
        _check_sampling(event, relation, accountant_fn)
        if monte_carlo is None:
            raise FixArgumentsError(
                f"{type(event).__name__} is bounded by sampling, and how many samples are needed "
                "depends on delta: pass monte_carlo=MonteCarlo.for_delta(the delta you expect)."
            )
        return sampled_losses(event, monte_carlo).delta(epsilon)
    accountant = composed_accountant(event, relation, accountant_fn)
    _check_digits(accountant)
    return float(accountant.get_delta(epsilon))


def _check_digits(accountant: PrivacyAccountant) -> None:
    """Raises where RDP has lost its digits: dp-accounting would then report an epsilon of 0."""
    if isinstance(accountant, RdpAccountant) and (accountant.rdp < 0).any():
        raise FixArgumentsError(
            "the Rényi divergences are so small that their rounding makes them negative, and the "
            "RDP accountant would report epsilon = 0. Use the PLD accountant, or less noise."
        )


def _check_sampling(
    event: DpEvent, relation: NeighboringRelation, accountant_fn: AccountantFn | None
) -> None:
    """Raises unless an event that is bounded by sampling is proven under the relation."""
    if relation is NeighboringRelation.REPLACE_ONE:
        raise FixArgumentsError(
            f"{type(event).__name__} under REPLACE_ONE: its bound compares with the absence of a "
            "record. Use ADD_OR_REMOVE_ONE or REPLACE_SPECIAL."
        )
    if accountant_fn is not None:
        composed_accountant(event, relation, accountant_fn)  # raises: there is no accountant


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
    """Epsilon after 1, 2, ..., `iterations` steps, `make_event(t)` being the event of t steps.

    Exact at up to `points` steps, the last among them. A step in between takes the epsilon of the
    next such step: above its own by about epsilon / points, never below. Before the last step, a
    coarser rounding is used.
    """
    total = whole_number("iterations", iterations)
    relation = relation_of(neighboring_relation)

    def cost(step: int, accountant: AccountantFn | None) -> float:
        return epsilon(
            make_event(step),
            delta=delta,
            neighboring_relation=relation,
            accountant_fn=accountant,
            monte_carlo=monte_carlo,
        )

    last = make_event(total)
    coarse = accountant_fn
    if accountant_fn is None and not isinstance(last, MixtureDpEvent):
        coarse = cheaper_accountants(last, relation, None)[0]
    # Epsilon grows about as the root of the steps, so these are about equally far apart in it.
    parts = np.arange(1, whole_number("points", points) + 1) / points
    grid = np.unique(np.append(np.ceil(total * parts**2), total)).astype(int)
    costs = [cost(int(step), coarse) for step in grid[:-1]] + [cost(total, accountant_fn)]
    # A step costs no more than all of them, so a later bound is one for it, too.
    bounds = np.minimum.accumulate(costs[::-1])[::-1]
    return bounds[np.searchsorted(grid, np.arange(1, total + 1))]
