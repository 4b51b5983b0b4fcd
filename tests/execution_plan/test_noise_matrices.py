"""Noise matrices agree with dense matrices."""

import numpy as np
import participations
import pytest

from bevel.batch_selection import Participation
from bevel.errors import FixArgumentsError
from bevel.execution_plan.noise_matrices import BandedNoise, BufferedNoise, IndependentNoise
from bevel.matrix_factorization.buffered_toeplitz import BufferedToeplitz

N = 7
ONCE = Participation(1, 1)
MATRICES = {
    "independent": IndependentNoise(),
    "banded": BandedNoise.of([1.0, 0.5, -0.25], None),
    "normalized": BandedNoise.of([1.0, 0.5, 0.25], N),
    "buffered": BufferedNoise.of(BufferedToeplitz.build([0.9, 0.3], [0.4, 0.2])),
}


def dense(noise, n=N):
    """C from its definition."""
    column = np.zeros(n)
    first = noise.first_column(n)
    column[: len(first)] = first
    matrix = np.array([[column[i - j] if i >= j else 0.0 for j in range(n)] for i in range(n)])
    if getattr(noise, "column_normalize_for_n", None):
        matrix /= np.linalg.norm(matrix, axis=0)
    return matrix


@pytest.mark.parametrize("name", MATRICES)
def test_noise_is_made_with_the_inverse(name):
    noise = MATRICES[name]
    inverse = noise.noising_matrix(N)
    made = np.eye(N) if inverse is None else np.asarray(inverse.materialize(N))
    np.testing.assert_allclose(made @ dense(noise), np.eye(N), atol=1e-6)


@pytest.mark.parametrize("name", MATRICES)
def test_errors_and_row_norms_are_those_of_the_matrix(name):
    noise = MATRICES[name]
    inverse = np.linalg.inv(dense(noise))
    prefix = np.tril(np.ones((N, N))) @ inverse
    expected = np.mean(np.sum(prefix**2, axis=1))
    np.testing.assert_allclose(noise.mean_error(N), expected, rtol=1e-6)
    norms = noise.row_norms(N)
    expected_norms = np.linalg.norm(inverse, axis=1)
    np.testing.assert_allclose(np.ones(N) if norms is None else norms, expected_norms, rtol=1e-6)


@pytest.mark.parametrize("name", ["independent", "banded", "normalized"])
@pytest.mark.parametrize("steps", [1, 2, 5, N])
def test_with_amplification_the_sensitivity_is_the_largest_column_norm_so_far(name, steps):
    noise = MATRICES[name]
    expected = np.max(np.linalg.norm(dense(noise)[:steps, :steps], axis=0))
    found = noise.sensitivity(steps, ONCE)
    assert expected <= found <= expected * (1 + 1e-6)


@pytest.mark.parametrize("uses", [Participation(1, 7), Participation(3, 3), Participation(2, 2)])
@pytest.mark.parametrize("steps", [1, 4, N])
def test_without_amplification_the_sensitivity_is_that_of_the_worst_pattern(uses, steps):
    noise = MATRICES["buffered"]
    patterns = participations.separated(steps, uses.min_separation, uses.max_participations)
    expected = participations.worst_move_squared(dense(noise, steps), patterns)
    np.testing.assert_allclose(noise.sensitivity(steps, uses) ** 2, expected, rtol=1e-9)


def test_entries_are_numbers_of_float32():
    for noise in (
        BandedNoise.of([1.0, 0.1, 1 / 3], None),
        BufferedNoise.of(BufferedToeplitz.build([0.9, 0.1], [0.3, 0.1])),
    ):
        column = noise.first_column(3) if isinstance(noise, BandedNoise) else noise.buf_decay
        np.testing.assert_array_equal(np.float32(column), column)


def test_trailing_zeros_are_not_bands():
    assert BandedNoise.of([1.0, 0.5, 0.0, 0.0], None).coefs == (1.0, 0.5)


@pytest.mark.parametrize("coefs", [[], [0.0, 1.0], [1.0, np.nan], [[1.0]]])
def test_other_values_than_a_first_column_are_refused(coefs):
    with pytest.raises(FixArgumentsError, match="first column"):
        BandedNoise.of(coefs, None)
