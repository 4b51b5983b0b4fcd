"""Shifts: what an example in each bin adds to the outputs, from the dense matrix."""

import numpy as np
import pytest

from bevel.accounting.events import balls_in_bins_event


@pytest.mark.parametrize("iterations, cycle", [(6, 3), (7, 3), (2, 5), (4, 1)])
@pytest.mark.parametrize("coefs", [[1.0], [2.0, 1.0], [1.0, -0.5, 0.25], [1.0] * 9])
def test_shifts_are_sums_of_columns(iterations, cycle, coefs):
    padded = np.zeros(iterations)
    padded[: len(coefs)] = coefs[:iterations]
    rows, columns = np.indices((iterations, iterations))
    dense = np.where(rows >= columns, padded[np.abs(rows - columns)], 0)
    largest = max(np.linalg.norm(dense[:, s]) for s in range(iterations))
    expected = np.zeros((cycle, iterations))
    for step in range(iterations):
        expected[step % cycle] += np.abs(dense[:, step]) / largest
    toeplitz = balls_in_bins_event(1.0, iterations, cycle_length=cycle, strategy=coefs)
    assert toeplitz.shifts() == pytest.approx(expected)
    full = balls_in_bins_event(1.0, iterations, cycle_length=cycle, strategy=dense)
    assert full.shifts() == pytest.approx(expected)
