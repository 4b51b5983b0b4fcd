"""Tree aggregation, the baseline for matrix factorizations (NumPy).

Every interval of 2^h steps that starts at a multiple of 2^h is a node. The sum of each node is
released with independent noise, and a prefix sum is composed of at most log2(n) + 1 nodes. The sum
of a node is also known from its children: the two estimates are averaged with optimal weights, from
the nodes that are complete so far (Honaker, 2015).
"""

from typing import Any

import numpy as np

from bevel.checks import whole_number
from bevel.matrix_factorization import sensitivity
from bevel.matrix_factorization.checks import checked_length, checked_rows


def num_levels(n: int) -> int:
    """The number of node levels in n steps, which is also the number of buffers of a run."""
    return whole_number("n", n).bit_length()


def strategy_matrix(n: int) -> np.ndarray:
    """C: one row per node within n steps, with 1.0 for the steps in the node.

    C is not square. `dense.strategy_from_X(C.T @ C)` is a square matrix with the same privacy.
    """
    checked_rows(n)
    rows = []
    for level in range(num_levels(n)):
        size = 1 << level
        nodes = np.kron(np.eye(n // size), np.ones(size))
        rows.append(np.pad(nodes, ((0, 0), (0, n - nodes.shape[1]))))
    return np.concatenate(rows)


def per_query_error(n: int) -> np.ndarray:
    """Squared error of each of n prefix sums, for noise of variance 1 at every node.

    Averaged with its children, the sum of a node at level h has variance 1 / (2 - 2^-h).
    """
    prefix = np.arange(1, checked_length(n) + 1)
    error = np.zeros(n)
    for level in range(num_levels(n)):
        error += ((prefix >> level) & 1) / (2 - 0.5**level)
    return error


def sensitivity_squared(n: int, min_sep: int = 1, max_participations: int | None = 1) -> Any:
    """Squared sensitivity: exact for one participation, otherwise an upper bound.

    A step is in one node of each level. Of participations that are `min_sep` apart, at most
    ceil(2^h / min_sep) share a node of level h.
    """
    times = sensitivity.minsep_true_max_participations(n, min_sep, max_participations)
    return sum(times * min(times, -(-(1 << level) // min_sep)) for level in range(num_levels(n)))
