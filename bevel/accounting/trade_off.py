"""What an attacker can do: the true-positive rate at each false-positive rate."""

import numpy as np
from dp_accounting import DpEvent

from bevel.accounting.accountants import AccountantFn
from bevel.accounting.arguments import Relation
from bevel.accounting.mixture_events import MixtureDpEvent
from bevel.accounting.monte_carlo import EPSILONS, MonteCarlo
from bevel.accounting.spending import delta, epsilon
from bevel.errors import FixArgumentsError

POINTS = 120
LARGEST = 500.0  # an epsilon beyond which nothing is hidden, and exp(epsilon) is still a number


def trade_off_curve(
    event: DpEvent,
    *,
    neighboring_relation: Relation,
    fpr: np.ndarray | None = None,
    accountant_fn: AccountantFn | None = None,
    monte_carlo: MonteCarlo | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """(FPR, TPR): no test for the presence of a record has a higher TPR at that FPR.

    From the deltas of many epsilons, each of which implies `TPR <= exp(epsilon) FPR + delta` and
    `1 - FPR <= exp(epsilon) (1 - TPR) + delta`. The least of these bounds is above the true curve,
    and closer to it the more epsilons are taken.
    """
    if fpr is None:
        fpr = np.concatenate([[0.0], np.geomspace(1e-6, 1, 121)])
    fpr = np.asarray(fpr, float)
    if not (fpr.ndim == 1 and fpr.size and (fpr >= 0).all() and (fpr <= 1).all()):
        raise FixArgumentsError("fpr: give an array of rates between 0 and 1.")
    bounds = [np.ones_like(fpr)]
    for value, excess in _epsilons_and_deltas(
        event, neighboring_relation, accountant_fn, monte_carlo
    ):
        bounds.append(np.exp(value) * fpr + excess)
        bounds.append(1 - np.exp(-value) * (1 - fpr - excess))
    return fpr, np.min(bounds, axis=0)


def _epsilons_and_deltas(
    event: DpEvent,
    relation: Relation,
    accountant_fn: AccountantFn | None,
    monte_carlo: MonteCarlo | None,
) -> list[tuple[float, float]]:
    """Points of the privacy profile, from epsilon = 0 to where delta is next to nothing."""
    if isinstance(event, MixtureDpEvent):
        epsilons = EPSILONS[EPSILONS <= 50]
    else:
        most = epsilon(
            event, delta=1e-9, neighboring_relation=relation, accountant_fn=accountant_fn
        )
        epsilons = np.linspace(0, min(most, LARGEST), POINTS)
    return [
        (
            float(value),
            delta(
                event,
                epsilon=float(value),
                neighboring_relation=relation,
                accountant_fn=accountant_fn,
                monte_carlo=monte_carlo,
            ),
        )
        for value in epsilons
    ]
