"""Whether an attacker may know when all other units were used: for which samplers, and why.

Let U be the steps at which the attacked unit is used, R those of all other units, and g_t, of norm
at most the bound, what the unit contributes at step t. A run releases

    X_t = S_t + [t in U] g_t + Z_t,

where the sum S_t of the others is a function of R and of the outputs before t, and so is g_t. The
attacker is given R, and subtracts S_t.

Claim. If R is independent of U, and has the same distribution with and without the unit, then the
guarantee of the plan holds given R.

Proof. Fix R = r. S_t is then a function of the earlier outputs, so X determines Y_t = X_t - S_t and
the other way round, step by step, and Y_t = [t in U] g_t + Z_t. As R is independent of U, the
distribution of U given R = r is that of U. So Y is the output of the mechanism on the unit alone,
with a g_t that may depend on earlier outputs. The events of `bevel.accounting` bound the divergence
of exactly this Y from that without the unit, for all such g_t. (They are stated for all others too
because the hockey-stick divergence is jointly convex: averaging over r, which has the same
distribution on both sides, cannot increase it.) Hence the bound holds for every r. []

| sampler                    | why R is independent of U                                          |
| -------------------------- | ------------------------------------------------------------------ |
| `CyclicPoissonSampling`    | each unit joins each step of its group by a coin of its own. The   |
|                            | partition into groups is given too: its event is that of any group |
| `BallsInBinsSampling`      | each unit draws its own bin                                        |
| `RandomAllocationSampling` | each unit draws its own steps                                      |
| `BMinSepSampling`          | each unit rests and joins by coins of its own                      |

If the unit is the user, the records that a user contributes are drawn for each user separately, and
the claim holds with users as units.

It is false for batches of a fixed size, and for truncated batches: if the others fill a batch, or
leave one place free, they tell whether the attacked unit is in it.
`tests/auditing/test_independent_units.py` checks both by enumeration.
"""

from typing import Any

from bevel.batch_selection import (
    BallsInBinsSampling,
    BMinSepSampling,
    CyclicPoissonSampling,
    RandomAllocationSampling,
)
from bevel.batch_selection.users import UserSelectionStrategy
from bevel.execution_plan import DPExecutionPlan


def units_are_independent(plan: DPExecutionPlan) -> bool:
    """Whether the guarantee holds given the steps at which all other units are used."""
    sampler = sampler_of(plan)
    if isinstance(sampler, CyclicPoissonSampling | BMinSepSampling):
        return sampler.truncated_batch_size is None
    return isinstance(sampler, BallsInBinsSampling | RandomAllocationSampling)


def sampler_of(plan: DPExecutionPlan) -> Any:
    """The sampler of the units, also if they are users."""
    sampler = plan.batch_selection_strategy
    return sampler.base_strategy if isinstance(sampler, UserSelectionStrategy) else sampler
