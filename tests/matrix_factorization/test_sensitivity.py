"""Sensitivities of dense matrices, compared with an exhaustive search."""

import numpy as np
import participations
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bevel.errors import FixArgumentsError
from bevel.matrix_factorization import buffered_toeplitz, sensitivity, toeplitz

N = 7
PATTERNS = [(1, None), (1, 2), (2, None), (2, 2), (3, None), (3, 1), (7, None), (9, 4)]


def strategies():
    rng = np.random.default_rng(0)
    mixed = np.tril(rng.normal(size=(N, N)))
    return {
        "mixed": mixed,
        "positive": np.abs(mixed),
        "prefix": np.tril(np.ones((N, N))),
        "root": toeplitz.materialize_lower_triangular(toeplitz.optimal_max_error_strategy_coefs(N)),
        "identity": np.eye(N),
        "opposed": toeplitz.materialize_lower_triangular([1.0, -1.0], N),
    }


NAMES = list(strategies())


@pytest.mark.parametrize("min_sep, most", PATTERNS)
def test_participations_that_fit(min_sep, most):
    fit = max(len(steps) for steps in participations.separated(N, min_sep, most))
    assert sensitivity.minsep_true_max_participations(N, min_sep, most) == fit


@settings(max_examples=60)
@given(st.data())
def test_best_sum_of_separated_entries(data):
    n = data.draw(st.integers(1, 7))
    x = np.array(data.draw(st.lists(st.floats(-3, 3), min_size=n, max_size=n)))
    min_sep = data.draw(st.integers(1, 8))
    most = data.draw(st.none() | st.integers(1, 8))
    best = max(x[list(steps)].sum() for steps in participations.separated(n, min_sep, most))
    got = sensitivity.max_participation_for_linear_fn(x, min_sep, most)
    np.testing.assert_allclose(got, best, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("most", [None, 2])
def test_best_sums_of_many_rows(most):
    x = np.random.default_rng(1).normal(size=(3, 2, N))
    got = sensitivity.max_participation_for_linear_fn(x, 2, most)
    each = [sensitivity.max_participation_for_linear_fn(row, 2, most) for row in x.reshape(-1, N)]
    np.testing.assert_array_equal(got, np.reshape(each, (3, 2)))


@pytest.mark.parametrize("name", NAMES)
def test_one_participation_is_the_largest_column_norm(name):
    C = strategies()[name]
    got = sensitivity.single_participation_sensitivity(C)
    alone = participations.worst_move_squared(C, [(i,) for i in range(N)])
    assert got == pytest.approx(np.sqrt(alone))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("min_sep, most", PATTERNS)
def test_min_sep_bound_is_never_low(name, min_sep, most):
    C = strategies()[name]
    patterns = list(participations.separated(N, min_sep, most))
    bound = sensitivity.get_min_sep_sensitivity_upper_bound(C, min_sep, most) ** 2
    assert bound >= participations.bound_squared(C, patterns) * (1 - 1e-12)
    assert bound >= participations.worst_move_squared(C, patterns) * (1 - 1e-12)
    if name in ("identity", "prefix", "root"):  # rows agree on the steps 0, min_sep, ...
        assert bound == pytest.approx(participations.bound_squared(C, patterns), rel=1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("epochs", [1, 7])
def test_fixed_epochs(name, epochs):
    C = strategies()[name]
    patterns = participations.epochs_apart(N, epochs)
    got = sensitivity.fixed_epoch_sensitivity(C, epochs) ** 2
    assert got == pytest.approx(participations.bound_squared(C, patterns), rel=1e-12)
    assert got >= participations.worst_move_squared(C, patterns) * (1 - 1e-12)
    if name not in ("mixed",):
        assert got == pytest.approx(participations.worst_move_squared(C, patterns), rel=1e-12)


def test_fixed_epochs_of_several_steps():
    C = np.tril(np.random.default_rng(3).uniform(size=(6, 6)))
    for epochs in (2, 3):
        patterns = participations.epochs_apart(6, epochs)
        got = sensitivity.fixed_epoch_sensitivity(C, epochs) ** 2
        assert got == pytest.approx(participations.worst_move_squared(C, patterns), rel=1e-12)


def test_opposite_contributions_are_counted():
    # Columns overlap negatively: opposite contributions move C g by 5 (squared), equal ones by 1.
    C = np.array([[1.0, 0.0], [-1.0, 1.0]])
    assert (C.T @ C).sum() == 1
    for got in (
        sensitivity.fixed_epoch_sensitivity(C, 2),
        sensitivity.get_min_sep_sensitivity_upper_bound(C, 1),
    ):
        assert got**2 == pytest.approx(5)


@pytest.mark.parametrize("seed", range(3))
def test_random_contributions_stay_within_the_bound(seed):
    rng = np.random.default_rng(seed)
    C = np.tril(rng.normal(size=(6, 6)))
    bound = sensitivity.get_min_sep_sensitivity_upper_bound(C, 2)
    fixed = sensitivity.fixed_epoch_sensitivity(C, 3)
    for _ in range(200):
        g = rng.normal(size=(6, 3))
        g /= np.linalg.norm(g, axis=1, keepdims=True)
        for steps in ((0, 2, 4), (1, 3, 5)):
            moved = np.linalg.norm(C[:, steps] @ g[list(steps)])
            assert moved <= bound and moved <= fixed


@pytest.mark.parametrize("bands", [1, 2, 3])
@pytest.mark.parametrize("min_sep, most", [(3, None), (3, 2), (5, None), (7, 1)])
def test_sensitivity_of_banded_matrices_is_exact(bands, min_sep, most):
    C = strategies()["mixed"] * sensitivity.banded_lower_triangular_mask(N, bands)
    patterns = list(participations.separated(N, min_sep, most))
    got = sensitivity.get_sensitivity_banded(C, min_sep, most) ** 2
    assert got == pytest.approx(participations.worst_move_squared(C, patterns), rel=1e-12)


def test_overlapping_columns_are_rejected():
    with pytest.raises(FixArgumentsError, match=r"X\[0, 2\].*upper_bound"):
        sensitivity.get_sensitivity_banded(np.tril(np.ones((4, 4))), 2)


def test_masks():
    lower = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]])
    np.testing.assert_array_equal(sensitivity.banded_lower_triangular_mask(4, 2), lower)
    np.testing.assert_array_equal(sensitivity.banded_symmetric_mask(4, 2), lower | lower.T)
    np.testing.assert_array_equal(sensitivity.banded_lower_triangular_mask(2, 9), [[1, 0], [1, 1]])


# Bad input.

FUNCTIONS_OF_X = [
    sensitivity.get_min_sep_sensitivity_upper_bound_for_X,
    sensitivity.get_sensitivity_banded_for_X,
    lambda X: sensitivity.fixed_epoch_sensitivity_for_X(X, 1),
]
FUNCTIONS_OF_C = [
    sensitivity.single_participation_sensitivity,
    sensitivity.get_min_sep_sensitivity_upper_bound,
    sensitivity.get_sensitivity_banded,
    lambda C: sensitivity.fixed_epoch_sensitivity(C, 1),
]


@pytest.mark.parametrize("function", FUNCTIONS_OF_X)
def test_bad_grams(function):
    for X, message in [
        (np.ones((2, 3)), "shape"),
        (np.array([[1.0, 2.0], [0.0, 1.0]]), "symmetric"),
        (-np.eye(2), "symmetric"),
        (np.array([[np.nan]]), "nan"),
    ]:
        with pytest.raises(FixArgumentsError, match=message):
            function(X)


@pytest.mark.parametrize("function", FUNCTIONS_OF_C)
def test_bad_strategies(function):
    for C, message in [(np.ones(3), "shape"), (np.ones((0, 0)), "shape"), ([[np.inf]], "inf")]:
        with pytest.raises(FixArgumentsError, match=message):
            function(C)


def test_bad_participations():
    for call in [
        lambda: sensitivity.minsep_true_max_participations(0, 1),
        lambda: sensitivity.minsep_true_max_participations(3, 0),
        lambda: sensitivity.minsep_true_max_participations(3, 1, -1),
        lambda: sensitivity.max_participation_for_linear_fn(np.ones(0)),
        lambda: sensitivity.max_participation_for_linear_fn(np.ones(3), 1.5),
        lambda: sensitivity.fixed_epoch_sensitivity(np.eye(4), 3),
        lambda: sensitivity.fixed_epoch_sensitivity(np.eye(4), 0),
        lambda: sensitivity.banded_symmetric_mask(4, 0),
    ]:
        with pytest.raises(FixArgumentsError):
            call()


def test_messages_say_what_must_hold():
    with pytest.raises(FixArgumentsError, match="epochs=2 must divide n=3"):
        sensitivity.fixed_epoch_sensitivity(np.eye(3), 2)
    for call in (
        lambda: sensitivity.fixed_epoch_sensitivity(np.eye(3), 0),
        lambda: sensitivity.get_sensitivity_banded(np.eye(3), min_sep=0),
        lambda: sensitivity.get_min_sep_sensitivity_upper_bound(np.eye(3), min_sep=-1),
        lambda: sensitivity.banded_symmetric_mask(3, 0),
    ):
        with pytest.raises(FixArgumentsError, match="must be positive"):
            call()


def test_without_participations_nothing_moves():
    assert sensitivity.minsep_true_max_participations(7, 2, 0) == 0
    assert sensitivity.max_participation_for_linear_fn(np.arange(5.0), 2, 0) == 0
    assert sensitivity.get_sensitivity_banded(np.eye(4), 1, 0) == 0
    assert toeplitz.minsep_sensitivity_squared(np.ones(2), 2, n=4, max_participations=0) == 0
    blt = buffered_toeplitz.BufferedToeplitz.build([0.5], [0.5])
    assert buffered_toeplitz.minsep_sensitivity_squared(blt, 4, 2, 0) == 0
    with pytest.raises(FixArgumentsError, match="max_participations=0"):
        buffered_toeplitz.LossFn.build_min_sep(4, max_participations=0)
    assert sensitivity.get_min_sep_sensitivity_upper_bound(np.tril(np.ones((4, 4))), 1, 0) == 0
