"""The tree baseline against its own matrix."""

import numpy as np
import participations
import pytest

from bevel.errors import FixArgumentsError
from bevel.matrix_factorization import dense, sensitivity, tree_aggregation


def online_decoder_error(n, query):
    """Squared error of a prefix sum, from the nodes that were complete by then, by least squares.

    Only the nodes below those that make up the prefix say anything new about it.
    """
    nodes = [row for row in tree_aggregation.strategy_matrix(n) if not row[query + 1 :].any()]
    nodes = np.array(nodes)
    wanted = (np.arange(n) <= query).astype(float)
    # Nodes that join two of the prefix's blocks do not exist, so blocks are estimated alone.
    weights = np.linalg.lstsq(nodes.T, wanted, rcond=None)[0]
    np.testing.assert_allclose(weights @ nodes, wanted, atol=1e-12)
    return float(weights @ weights)


def test_nodes():
    np.testing.assert_array_equal(
        tree_aggregation.strategy_matrix(3),
        [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0]],
    )
    assert tree_aggregation.strategy_matrix(8).shape == (15, 8)
    assert [tree_aggregation.num_levels(n) for n in (1, 2, 3, 4, 8)] == [1, 2, 2, 3, 4]


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 13])
def test_errors_are_the_best_that_the_nodes_allow(n):
    expected = [online_decoder_error(n, query) for query in range(n)]
    np.testing.assert_allclose(tree_aggregation.per_query_error(n), expected, rtol=1e-12)


@pytest.mark.parametrize("n", [1, 5, 8, 13])
def test_one_participation_is_the_longest_column(n):
    C = tree_aggregation.strategy_matrix(n)
    expected = sensitivity.single_participation_sensitivity(C) ** 2
    assert tree_aggregation.sensitivity_squared(n) == pytest.approx(expected)


@pytest.mark.parametrize("min_sep, most", [(1, None), (1, 2), (3, None), (3, 2), (4, None), (9, 5)])
def test_several_participations_have_an_upper_bound(min_sep, most):
    n = 8
    C = tree_aggregation.strategy_matrix(n)
    truth = participations.worst_move_squared(C, participations.separated(n, min_sep, most))
    bound = tree_aggregation.sensitivity_squared(n, min_sep, most)
    assert truth <= bound * (1 + 1e-12)
    if min_sep in (1, 4) and most is None:  # blocks are filled evenly
        assert truth == pytest.approx(bound)


def test_a_square_strategy_of_the_same_privacy_is_no_worse():
    n = 8
    tree = tree_aggregation.strategy_matrix(n)
    square = dense.strategy_from_X(tree.T @ tree)
    assert np.all(
        dense.per_query_error(strategy_matrix=square)
        <= tree_aggregation.per_query_error(n) * (1 + 1e-9)
    )


def test_bad_input():
    for function in (
        tree_aggregation.strategy_matrix,
        tree_aggregation.per_query_error,
        tree_aggregation.sensitivity_squared,
    ):
        with pytest.raises(FixArgumentsError, match="n=0"):
            function(0)
    with pytest.raises(FixArgumentsError, match="min_sep"):
        tree_aggregation.sensitivity_squared(4, 0)
