"""Sensitivity by trying everything: which steps an example may join, and what it can do there."""

import itertools

import numpy as np


def separated(n, min_sep, most=None):
    """All sets of steps that are at least `min_sep` apart, the empty one included."""
    most = n if most is None else most
    for count in range(min(n, most) + 1):
        for steps in itertools.combinations(range(n), count):
            if all(b - a >= min_sep for a, b in itertools.pairwise(steps)):
                yield steps


def epochs_apart(n, epochs):
    """The sets of steps of examples that keep their place in every epoch."""
    period = n // epochs
    return [tuple(range(i, n, period)) for i in range(period)]


def worst_move_squared(C, patterns):
    """Largest |C g|^2 for contributions that all point one way or the other along one line."""
    best = 0.0
    for steps in patterns:
        for signs in itertools.product((-1.0, 1.0), repeat=max(len(steps) - 1, 0)):
            moved = C[:, list(steps)] @ np.array([1.0, *signs][: len(steps)])
            best = max(best, float(moved @ moved))
    return best


def bound_squared(C, patterns):
    """Largest sum of |C'C| over the steps that one example joins."""
    X = np.abs(C.T @ C)
    return max(float(X[np.ix_(steps, steps)].sum()) for steps in patterns)
