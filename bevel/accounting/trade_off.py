"""The trade-off curve: an attacker's highest true-positive rate at each false-positive rate."""

from typing import Any

import numpy as np
from dp_accounting import DpEvent

from bevel.accounting.accountants import AccountantFn
from bevel.accounting.arguments import Relation
from bevel.accounting.mixture_events import MixtureDpEvent
from bevel.accounting.monte_carlo import EPSILONS, MonteCarlo
from bevel.accounting.spending import delta, epsilon
from bevel.checks import reals
from bevel.errors import FixArgumentsError

POINTS = 120
# Events that are bounded by sampling take a hundred samples divided by this, by default.
SAMPLED_DELTA = 1e-4
LARGEST_EPSILON = 500.0  # there is no privacy beyond this, and exp(epsilon) does not overflow


def trade_off_curve(
    event: DpEvent,
    *,
    neighboring_relation: Relation,
    fpr: np.ndarray | None = None,
    accountant_fn: AccountantFn | None = None,
    monte_carlo: MonteCarlo | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (FPR, TPR): no test for the presence of a record has a higher TPR at that FPR.

    The curve is computed from the deltas of many epsilons. Each pair implies
    `TPR <= exp(epsilon) FPR + delta` and `1 - FPR <= exp(epsilon) (1 - TPR) + delta`. The least of
    these bounds lies above the true curve.

    Events that are bounded by Monte Carlo sampling use `MonteCarlo.for_delta(1e-4)` by default.
    More samples bring the curve closer to the true one, at low rates above all.
    """
    if fpr is None:
        fpr = np.concatenate([[0.0], np.geomspace(1e-6, 1, 121)])
    hint = "pass a one-dimensional array of rates between 0 and 1"
    fpr = reals("fpr", fpr, (1,), hint).astype(float)
    if not (fpr.size and (fpr >= 0).all() and (fpr <= 1).all()):
        raise FixArgumentsError(
            f"fpr has shape {fpr.shape}: pass a one-dimensional array of rates between 0 and 1."
        )
    bounds = [np.ones_like(fpr)]
    for eps, delta_ in _privacy_profile(event, neighboring_relation, accountant_fn, monte_carlo):
        bounds.append(np.exp(eps) * fpr + delta_)
        bounds.append(1 - np.exp(-eps) * (1 - fpr - delta_))
    return fpr, np.min(bounds, axis=0)


def _privacy_profile(
    event: DpEvent,
    relation: Relation,
    accountant_fn: AccountantFn | None,
    monte_carlo: MonteCarlo | None,
) -> list[tuple[float, float]]:
    """Returns pairs (epsilon, delta), from epsilon = 0 to where delta is negligible."""
    settings: dict[str, Any] = {"neighboring_relation": relation, "accountant_fn": accountant_fn}
    if isinstance(event, MixtureDpEvent):
        monte_carlo = monte_carlo or MonteCarlo.for_delta(SAMPLED_DELTA)
        epsilons = EPSILONS[EPSILONS <= 50]
    else:
        largest = epsilon(event, delta=1e-9, **settings)
        epsilons = np.linspace(0, min(largest, LARGEST_EPSILON), POINTS)
    settings["monte_carlo"] = monte_carlo
    return [(eps, delta(event, epsilon=eps, **settings)) for eps in epsilons.tolist()]
