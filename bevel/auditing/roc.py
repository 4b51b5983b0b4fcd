"""The receiver operating characteristic: its convex hull, area, and rates at given rates.

An attacker may choose between two thresholds at random, so every point on a line between two points
of the ROC can be reached. The hull is the curve of the best such attacker. Its area and its rates
are at least those of the plain curve, also on scores that carry no information.
"""

import numpy as np

from bevel.auditing.arguments import Floats
from bevel.auditing.score_cuts import Counts

# Passes over all points at once; what is left is a few thousand points, for which a loop is fast.
_PASSES = 30


def upper_hull(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The vertices of the upper hull of distinct points, whose x and y are both non-decreasing.

    A point on or below the line between any two other points is not a vertex. So all points that
    are not above the line between their neighbours can be removed at the same time.
    """
    for _ in range(_PASSES):
        above = _above_neighbours(x, y)
        if above.all():
            break
        x, y = x[above], y[above]
    else:
        x, y = _monotone_chain(x, y)
    first = int(np.searchsorted(x, x[0], side="right")) - 1  # the highest point with the least x
    return x[first:], y[first:]


def hull_of(counts: Counts) -> tuple[Floats, Floats]:
    """The false- and true-positive rates at the vertices of the convex hull."""
    tp, fp = counts.corners()
    x, y = upper_hull(fp, tp)  # whole numbers, so that points on one line are found exactly
    return x / fp[-1], y / tp[-1]


def hull_tpr(counts: Counts, fpr: Floats) -> Floats:
    """The true-positive rate on the convex hull at given false-positive rates."""
    return np.interp(fpr, *hull_of(counts))


def hull_area(counts: Counts) -> float:
    """The area under the convex hull: 0.5 if the scores carry no information, and at most 1."""
    x, y = hull_of(counts)
    return float(np.trapezoid(y, x))


def best_accuracy(tpr: Floats, fpr: Floats, prevalence: float) -> float:
    """The highest accuracy among pairs of rates, and of calling every example the same."""
    accuracy = prevalence * tpr + (1 - prevalence) * (1 - fpr)
    return float(max(np.max(accuracy), prevalence, 1 - prevalence))


def _above_neighbours(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    above = np.ones(x.size, bool)
    dx, dy = np.diff(x), np.diff(y)
    above[1:-1] = dy[:-1] * dx[1:] > dy[1:] * dx[:-1]
    return above


def _monotone_chain(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Andrew's algorithm, one point after the other."""
    kept: list[tuple[float, float]] = []
    for point in zip(x.tolist(), y.tolist(), strict=True):
        while len(kept) > 1:
            (x0, y0), (x1, y1) = kept[-2:]
            if (y1 - y0) * (point[0] - x1) > (point[1] - y1) * (x1 - x0):
                break
            kept.pop()
        kept.append(point)
    return np.array([p[0] for p in kept]), np.array([p[1] for p in kept])
