"""The numbers behind the two pictures of an audit: a histogram of scores, and an ROC.

They are plain lists, so that anything can draw them. They are made from the scores of single
canaries, which know what the other examples contributed, so they are private.
"""

import numpy as np

from bevel.auditing.arguments import Floats
from bevel.auditing.promise import allowed_tpr
from bevel.auditing.score_cuts import ScoreCuts
from bevel.execution_plan import DPExecutionPlan

_BINS, _POINTS = 40, 200
_BEYOND = 0.001  # the share of scores on each side that may lie outside of the range of the bins
_SMALLEST_FPR = 1e-6


def histogram(scores: Floats, held_in: np.ndarray) -> dict[str, list[float]]:
    """Counts of scores in 40 bins: `edges` (41), and the counts `held_in` and `held_out` (40 each).

    Scores below the first or above the last edge are in the first or last bin, so that a few
    far-off ones do not squeeze all others into one bin. Every canary is counted once.
    """
    low, high = np.quantile(scores, [_BEYOND, 1 - _BEYOND])
    if low == high:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, _BINS + 1)
    counts = [
        np.histogram(np.clip(scores[side], low, high), edges)[0] for side in (held_in, ~held_in)
    ]
    return {
        "edges": edges.tolist(),
        "held_in": counts[0].tolist(),
        "held_out": counts[1].tolist(),
    }


def roc(scores: Floats, held_in: np.ndarray) -> dict[str, list[float]]:
    """The rates `fpr` and `tpr` of all thresholds, from (0, 0) to (1, 1), in at most 200 points.

    Points are dense where the false-positive rate is small, which matters most for privacy.
    """
    tp, fp = ScoreCuts(scores[held_in], scores[~held_in]).counts()
    fpr, tpr = fp / fp[-1], tp / tp[-1]
    steps = np.unique(np.geomspace(1, len(fpr), _POINTS).astype(int) - 1)
    return {"fpr": fpr[steps].tolist(), "tpr": tpr[steps].tolist()}


def promise(plan: DPExecutionPlan | None, epsilon: float, delta: float) -> dict[str, list[float]]:
    """The highest `tpr` that the guarantee allows at each `fpr`: see `allowed_tpr`.

    The ROC of one run can lie above it by chance where few canaries count.
    """
    fpr = np.concatenate([[0.0], np.geomspace(_SMALLEST_FPR, 1, 121)])
    tpr = np.maximum(allowed_tpr(plan, epsilon, delta, fpr), fpr)
    return {"fpr": fpr.tolist(), "tpr": tpr.tolist()}
