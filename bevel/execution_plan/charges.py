"""The charges of a plan to a ledger, by steps or by ranges of steps."""

from typing import NamedTuple

from dp_accounting import DpEvent

from bevel.errors import FixArgumentsError
from bevel.execution_plan.mechanism import Mechanism


class PlannedCharge(NamedTuple):
    """The arguments of `LedgerRun.charge`: the event of steps `first` to `stop - 1`."""

    first: int
    stop: int
    event: DpEvent


def planned_charge(mechanism: Mechanism, first: int, stop: int, begun: int = 0) -> PlannedCharge:
    """Returns the charge to make before releasing steps `first` to `stop - 1` of an attempt.

    | event                         | charge                                                    |
    | ----------------------------- | --------------------------------------------------------- |
    | composes step by step         | these steps                                               |
    | does not compose              | restates all steps from `begun` to the end of their round |
    | bounded by Monte Carlo        | all steps from `begun` to the end of the run, once        |

    A charge may cover steps after `stop`. Steps that are already charged
    (`LedgerRun.charged_until`) need no further charge.

    Args:
      begun: the first step of the current attempt. If steps do not compose, an attempt starts
        over: its batches are those of steps 0, 1, ... with the attempt's secrets, and its noise
        starts with a new `init`. It shares nothing with earlier attempts, so it composes with them
        and is charged as a run of its own steps.
    """
    if not 0 <= begun <= first < stop <= mechanism.iterations:
        raise FixArgumentsError(
            f"first={first}, stop={stop}, begun={begun}: pass 0 <= begun <= first < stop <= "
            f"{mechanism.iterations}."
        )
    if mechanism.composes_by_step:
        return PlannedCharge(first, stop, mechanism.event_after(stop - first))
    end = min(begun + mechanism.end_of_round(stop - begun), mechanism.iterations)
    return PlannedCharge(begun, end, mechanism.event_after(end - begun))
