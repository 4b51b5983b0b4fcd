"""`StatedEpsilon`: the epsilon that a run states at its releases."""

import collections
import functools

from dp_accounting import DpEvent

from bevel.accounting.ledger.event_json import event_to_json
from bevel.accounting.ledger.release_epsilon import release_epsilon, stride_of
from bevel.accounting.ledger.spent import epsilon_of
from bevel.accounting.ledger.totals import event_counts as json_event_counts
from bevel.accounting.loss_distributions import event_counts
from bevel.execution_plan import DPExecutionPlan

Counts = collections.Counter[str]


class StatedEpsilon:
    """The epsilon that a run states at its releases.

    It is exact after the last step. Before, it is at most `TOLERANCE` too high and never too low
    (`accounting.ledger.release_epsilon`). It depends on what was spent and on public settings only.
    """

    def __init__(self, plan: DPExecutionPlan, releases_every: int) -> None:
        self.plan, self._releases_every = plan, releases_every

    def epsilon(self, counts: Counts, delta: float, released: int) -> float:
        """Returns the epsilon of the counted events after the steps before `released`."""
        relation = self.plan.neighboring_relation
        if released >= self.plan.iterations:
            return epsilon_of(counts, delta, relation)
        return release_epsilon(counts, *self._growth, delta, relation)

    def of_steps(self, steps: int, delta: float) -> float:
        """The epsilon of the first steps of the plan, without any other run."""
        event = event_to_json(self.plan.event_after(steps))
        return self.epsilon(json_event_counts(event), delta, steps)

    @functools.cached_property
    def _growth(self) -> tuple[DpEvent | None, int]:
        """The event that each step adds, None if there are several, and a stride for its count."""
        total = event_counts(self.plan.event_after(self.plan.iterations))
        if len(total) != 1:
            return None, 1
        ((event, count),) = total.items()
        each = -(-count * self._releases_every // self.plan.iterations)
        return event, stride_of(each, count)
