"""An RDP accountant that keeps the Rényi divergences of single events.

Some of them take a tenth of a second, such as those of batches of a fixed size, and a run asks
again and again for the epsilon of the same event, composed more often. The result is that of
`RdpAccountant`, to the last bit.
"""

import functools
from typing import Any

import numpy as np
from dp_accounting import ComposedDpEvent, DpEvent, NeighboringRelation, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant


class CachedRdpAccountant(RdpAccountant):
    """Composes like `RdpAccountant`. Queries about more of the same events are fast."""

    def __init__(self, neighboring_relation: NeighboringRelation) -> None:
        super().__init__(neighboring_relation=neighboring_relation)

    def _maybe_compose(self, event: DpEvent, count: int, do_compose: bool) -> Any:
        nested = isinstance(event, SelfComposedDpEvent | ComposedDpEvent)
        if not do_compose or nested or isinstance(event.__hash__, type(None)):
            return super()._maybe_compose(event, count, do_compose)
        self._rdp += count * single_divergences(event, self.neighboring_relation)
        return None


@functools.lru_cache(maxsize=256)
def single_divergences(event: DpEvent, relation: NeighboringRelation) -> np.ndarray:
    """The divergences of one event, at the default orders."""
    return np.asarray(RdpAccountant(neighboring_relation=relation).compose(event)._rdp)
