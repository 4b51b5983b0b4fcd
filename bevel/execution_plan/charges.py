"""What a ledger is charged, step by step or range by range."""

from typing import NamedTuple

from dp_accounting import DpEvent

from bevel.errors import FixArgumentsError
from bevel.execution_plan.mechanism import Mechanism


class PlannedCharge(NamedTuple):
    """What `LedgerRun.charge(*planned)` takes: the event of steps `first` to `stop - 1`."""

    first: int
    stop: int
    event: DpEvent


def planned_charge(mechanism: Mechanism, first: int, stop: int, begun: int = 0) -> PlannedCharge:
    """What is charged before steps `first` to `stop - 1` of an attempt are released.

    | event                     | charged                                                        |
    | ------------------------- | -------------------------------------------------------------- |
    | composes step by step     | these steps                                                    |
    | ties steps together       | all steps from `begun` on, anew, to the end of their round     |
    | is bounded by sampling    | the whole run, once                                            |

    A charge may reach beyond `stop`: steps that are charged already (`LedgerRun.charged_until`)
    need no further one.

    Args:
      begun: the step with which the present attempt began. Where steps are tied together, an
        attempt begins afresh: its batches are those of steps 0, 1, ... with the attempt's secrets,
        and its noise starts with a new `init`. It shares nothing with the attempt before, so the
        two compose, and it is charged as a run of its own steps.
    """
    if not 0 <= begun <= first < stop <= mechanism.iterations:
        raise FixArgumentsError(
            f"steps {first} to {stop} of an attempt that began at {begun}: give 0 <= begun <= "
            f"first < stop <= {mechanism.iterations}."
        )
    if mechanism.composes_by_step:
        return PlannedCharge(first, stop, mechanism.event_after(stop - first))
    end = min(begun + mechanism.end_of_round(stop - begun), mechanism.iterations)
    return PlannedCharge(begun, end, mechanism.event_after(end - begun))
