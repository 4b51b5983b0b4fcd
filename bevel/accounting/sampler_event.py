"""Builds the event that is proven for a sampler, so that the two cannot be mismatched."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
from dp_accounting import DpEvent

from bevel.accounting import events
from bevel.accounting.arguments import Relation, checked_noise, relation_of
from bevel.checks import function, reals
from bevel.errors import FixArgumentsError


class _Claim(Protocol):
    """What a sampler claims: `bevel.batch_selection.ProvenEvent`, or an equivalent class."""

    @property
    def function(self) -> str: ...
    @property
    def arguments(self) -> Mapping[str, object]: ...
    @property
    def relations(self) -> tuple[str, ...]: ...
    @property
    def takes_strategy(self) -> bool: ...


class _Sampler(Protocol):
    """A sampler that states which event is proven for it."""

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
    """Returns the event of a run whose batches come from `sampler`. Raises if none is proven.

    Args:
      noise_multiplier: standard deviation of the noise (of z, for noise C^-1 z), divided by the
        bound on one record's contribution and by the largest column norm of C.
      num_examples: number of examples, or of users or owners if the sampler selects those.
      strategy: C, as the coefficients of a Toeplitz matrix or as a matrix. The default is the
        identity, which means independent noise.
    """
    _check_sampler(sampler)
    checked_noise(noise_multiplier)
    claim = sampler.proven_event(num_examples, num_bands(strategy))
    arguments = dict(claim.arguments)
    if claim.takes_strategy:
        arguments["strategy"] = strategy
    return _checked_event(sampler, claim, noise_multiplier, arguments, neighboring_relation)


def unamplified_event_of(
    sampler: _Sampler, noise_multiplier: float, *, neighboring_relation: Relation
) -> DpEvent:
    """Returns the event of a run without amplification, for noise of any correlation.

    `noise_multiplier` is relative to the sensitivity of the whole run for one record's bound, over
    all participation patterns that `sampler.participation()` allows.
    """
    _check_sampler(sampler)
    checked_noise(noise_multiplier)
    claim = sampler.unamplified_event()
    return _checked_event(sampler, claim, noise_multiplier, claim.arguments, neighboring_relation)


def _check_sampler(sampler: _Sampler) -> None:
    for method in ("proven_event", "unamplified_event"):
        function(f"sampler.{method}", getattr(sampler, method, None), "pass a sampler")


def _checked_event(
    sampler: _Sampler,
    claim: _Claim,
    noise_multiplier: float,
    arguments: Mapping[str, object],
    neighboring_relation: Relation,
) -> DpEvent:
    """Builds the claimed event. Raises unless it is proven under the relation."""
    relation = relation_of(neighboring_relation)
    if relation.name not in claim.relations:
        proven = ", ".join(claim.relations) or "none"
        raise FixArgumentsError(
            f"{type(sampler).__name__} under {relation.name}: no guarantee is proven for this "
            f"combination. Relations with a proof: {proven}. Use one of them, or another sampler."
        )
    return EVENTS[claim.function](noise_multiplier, **arguments)


def num_bands(strategy: Sequence[float] | np.ndarray) -> int:
    """Returns the number of bands of C: its diagonals down to the lowest one that is not zero."""
    matrix = reals("strategy", strategy, (1, 2))
    if matrix.ndim == 2:
        rows, columns = np.nonzero(matrix)
        return int(np.max(rows - columns, initial=0)) + 1
    return int(np.max(np.flatnonzero(matrix), initial=0)) + 1
