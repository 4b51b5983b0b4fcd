"""Tree aggregation, compared with its matrix."""

import numpy as np
import participations
import pytest

from bevel.errors import FixArgumentsError
from bevel.matrix_factorization import dense, sensitivity, tree_aggregation


def online_decoder_error(n, query):
    """Squared error of a prefix sum, by least squares on the nodes that are complete by then."""
    nodes = [row for row in tree_aggregation.strategy_matrix(n) if not row[query + 1 :].any()]
    nodes = np.array(nodes)
    query_row = (np.arange(n) <= query).astype(float)
    # No complete node spans two blocks of the prefix, so blocks are estimated separately.
    weights = np.linalg.lstsq(nodes.T, query_row, rcond=None)[0]
    np.testing.assert_allclose(weights @ nodes, query_row, atol=1e-12)
    return float(weights @ weights)


def test_nodes():
    np.testing.assert_array_equal(
        tree_aggregation.strategy_matrix(3),
        [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0]],
    )
    assert tree_aggregation.strategy_matrix(8).shape == (15, 8)
    assert [tree_aggregation.num_levels(n) for n in (1, 2, 3, 4, 8)] == [1, 2, 2, 3, 4]


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 13])
def test_errors_are_those_of_the_least_squares_decoder(n):
    expected = [online_decoder_error(n, query) for query in range(n)]
    np.testing.assert_allclose(tree_aggregation.per_query_error(n), expected, rtol=1e-12)


@pytest.mark.parametrize("n", [1, 5, 8, 13])
def test_one_participation_is_the_largest_column_norm(n):
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
    if min_sep in (1, 4) and most is None:  # nodes contain equally many participations
        assert truth == pytest.approx(bound)


def test_a_square_matrix_of_the_same_privacy_is_no_worse():
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
