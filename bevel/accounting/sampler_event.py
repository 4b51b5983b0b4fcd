"""From a sampler to its event: the one way that cannot put a wrong pair together."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
from dp_accounting import DpEvent

from bevel.accounting import events
from bevel.accounting.arguments import Relation, relation_of
from bevel.errors import FixArgumentsError


class _Claim(Protocol):
    """What a sampler may claim: `bevel.batch_selection.ProvenEvent`, or the like."""

    @property
    def function(self) -> str: ...
    @property
    def arguments(self) -> Mapping[str, object]: ...
    @property
    def relations(self) -> tuple[str, ...]: ...
    @property
    def takes_strategy(self) -> bool: ...


class _Sampler(Protocol):
    """A sampler that says which event is proven for it."""

    def proven_event(self, num_examples: int, num_bands: int = 1, /) -> _Claim: ...
    def unamplified_event(self) -> _Claim: ...


EVENTS: dict[str, Callable[..., DpEvent]] = {
    event.__name__: event
    for event in (
        events.dpsgd_event,
        events.fixed_dpsgd_event,
        events.truncated_dpsgd_event,
        events.amplified_bandmf_event,
        events.truncated_amplified_bandmf_event,
        events.balls_in_bins_event,
        events.random_allocation_event,
        events.gaussian_event,
    )
}


def event_of(
    sampler: _Sampler,
    noise_multiplier: float,
    *,
    num_examples: int,
    neighboring_relation: Relation,
    strategy: Sequence[float] | np.ndarray = (1.0,),
) -> DpEvent:
    """The event of a run whose batches `sampler` selects, if it is proven under the relation.

    Args:
      noise_multiplier: standard deviation of the noise (of z, for noise C^-1 z), over the bound of
        one record's contribution and the largest column norm of C.
      num_examples: how many there are; of users or owners, if the sampler selects those.
      strategy: C, as the coefficients of a Toeplitz matrix or as a matrix. The default is the
        identity: independent noise.
    """
    claim = sampler.proven_event(num_examples, num_bands(strategy))
    arguments = dict(claim.arguments)
    if claim.takes_strategy:
        arguments["strategy"] = strategy
    return _claimed(sampler, claim, noise_multiplier, arguments, neighboring_relation)


def unamplified_event_of(
    sampler: _Sampler, noise_multiplier: float, *, neighboring_relation: Relation
) -> DpEvent:
    """The event of a run with noise of any correlation, if selection is alike under the relation.

    `noise_multiplier` is relative to the sensitivity of the whole run to one record's bound, over
    all patterns of use that `sampler.participation()` allows.
    """
    claim = sampler.unamplified_event()
    arguments = dict(claim.arguments)
    return _claimed(sampler, claim, noise_multiplier, arguments, neighboring_relation)


def _claimed(
    sampler: _Sampler,
    claim: _Claim,
    noise_multiplier: float,
    arguments: Mapping[str, object],
    neighboring_relation: Relation,
) -> DpEvent:
    relation = relation_of(neighboring_relation)
    if relation.name not in claim.relations:
        proven = ", ".join(claim.relations) or "none"
        raise FixArgumentsError(
            f"{type(sampler).__name__} under {relation.name}: no guarantee is proven for that. "
            f"Relations with a proof: {proven}. Take one of them, or another sampler."
        )
    return EVENTS[claim.function](noise_multiplier, **arguments)


def num_bands(strategy: Sequence[float] | np.ndarray) -> int:
    """Steps over which noise C^-1 z is correlated through C: its lowest diagonal that is not 0."""
    matrix = np.asarray(strategy, float)
    if matrix.ndim == 2:
        rows, columns = np.nonzero(matrix)
        return int(np.max(rows - columns, initial=0)) + 1
    return int(np.max(np.flatnonzero(matrix), initial=0)) + 1
