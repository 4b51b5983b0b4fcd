"""The figures of what was spent: epsilon over steps, and the curve that bounds every attack."""

import math
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np

from bevel.accounting.rounding import shown_delta, shown_epsilon
from bevel.report.axis import Axis, axis_of
from bevel.report.figure import Figure, by_attempt, figure, numbers_of
from bevel.report.line_chart import Series
from bevel.report.meaning import guess_bound
from bevel.report.rounding import percent_up
from bevel.report.run_files import RunFiles

if TYPE_CHECKING:
    from bevel.accounting.ledger.spent import Spent

RATES = (0.001, 0.01, 0.1)
EPSILON_AXIS = "ε spent"


def epsilon_over_steps(run: RunFiles, spent: "Spent | None") -> Figure | None:
    """Epsilon at each checkpoint and the budget, or None if no epsilon was recorded."""
    series = by_attempt(run.metrics, "epsilon", "spent by all runs in the ledger", marker=1)
    if not series:
        return None
    last = max(float(run.record.get("steps") or 0), *(float(line.x[-1]) for line in series))
    budget = spent.terms.budget if spent else None
    if budget is not None:
        limit = [budget.epsilon] * 2
        series.append(Series("budget, fixed beforehand", [0, last], limit, 2, dash=1))
    delta = f" at δ = {shown_delta(spent.delta)}" if spent else ""
    return figure(
        "epsilon",
        "Privacy spent over steps",
        f"ε up to each checkpoint{delta}, as recorded in metrics.jsonl.",
        axis_of("ε at each checkpoint", numbers_of(series), include=[0], in_words=shown_epsilon),
        series,
        Axis("step", 0, last or 1),
    )


def trade_off(spent: "Spent | None") -> tuple[Figure, list[tuple[str, str]]] | None:
    """The curve that no attack exceeds, and some of its points. None if there is no bound."""
    if spent is None or not spent.runs or math.isinf(spent.epsilon):
        return None
    fpr = np.unique(np.concatenate([np.linspace(0, 1, 101), np.geomspace(1e-4, 1, 81), RATES]))
    tpr, exact = attack_bound(spent, fpr)
    series = [Series("no attack exceeds this", list(fpr), list(tpr), 1)]
    budget = spent.terms.budget
    if budget is not None:
        allowed = implied_bound(budget.epsilon, budget.delta, fpr)
        series.append(Series("budget's ε and δ alone", list(fpr), list(allowed), 2, dash=1))
    series.append(Series("blind guessing", [0, 1], [0, 1], 3, dash=2))
    how = (
        "Computed from the whole privacy profile of what was charged. A guess at even odds is "
        f"right at most {percent_up(best_guess(spent, fpr, tpr))} of the time by this curve. "
        "That is sharper than the figure in the guarantee, which follows from ε and δ alone."
        if exact
        else "Computed from ε and δ alone, because no accountant can compose the charges, or they "
        "are bounded by Monte Carlo sampling."
    )
    drawn = figure(
        "trade-off",
        "What an attacker can achieve",
        f"An attacker tests for the presence of one {spent.terms.unit}. The curve bounds the rate "
        f"of true positives at each rate of false positives, in real-number arithmetic. {how}",
        Axis("true-positive rate", 0, 1, in_words=_rate_up),
        series,
        Axis("false-positive rate", 0, 1),
    )
    points = [(f"{rate:g}", _rate_up(float(tpr[np.searchsorted(fpr, rate)]))) for rate in RATES]
    return drawn, points


def _rate_up(rate: float) -> str:
    """A rate with four digits after the point, rounded up."""
    return f"{min(1.0, math.ceil(rate * 1e4) / 1e4):g}"


def attack_bound(spent: "Spent", fpr: np.ndarray) -> tuple[np.ndarray, bool]:
    """An upper bound on the TPR, and whether it uses the whole privacy profile or one epsilon."""
    from bevel.accounting import trade_off_curve
    from bevel.accounting.mixture_events import MixtureDpEvent

    if len(spent.events) != 1 or isinstance(spent.events[0], MixtureDpEvent):
        return implied_bound(spent.epsilon, spent.delta, fpr), False
    (event,) = spent.events
    relation = spent.terms.relation
    return trade_off_curve(event, neighboring_relation=relation, fpr=fpr)[1], True


def best_guess(spent: "Spent", fpr: np.ndarray, tpr: np.ndarray) -> Decimal:
    """An upper bound on `(TPR + 1 - FPR) / 2` along a curve, including between its points.

    TPR grows with FPR, so between two points it is at most the TPR of the right one. Where the
    points are too coarse for that, the bound from epsilon and delta alone is smaller.
    """
    on_curve = Decimal(float((1 + np.max(tpr[1:] - fpr[:-1])) / 2))
    return min(on_curve, guess_bound(Decimal(spent.epsilon), Decimal(spent.delta)))


def implied_bound(epsilon: float, delta: float, fpr: np.ndarray) -> np.ndarray:
    """The largest TPR that (epsilon, delta) allows at each FPR."""
    low = np.exp(min(epsilon, 700.0)) * fpr + delta
    high = 1 - np.exp(-epsilon) * (1 - fpr - delta)
    return np.minimum(1.0, np.minimum(low, high))
