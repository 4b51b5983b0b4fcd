"""Mixture events: their shifts equal those computed from the dense matrix."""

import dp_accounting
import numpy as np
import pytest

from bevel.accounting.events import balls_in_bins_event, random_allocation_event


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


EVENTS = [
    balls_in_bins_event(1.0, 4, cycle_length=2, strategy=(1.0, 0.5)),
    balls_in_bins_event(1.0, 2, cycle_length=2, strategy=np.eye(2)),
    random_allocation_event(1.0, 4, total_participations=2),
]


@pytest.mark.parametrize("event", EVENTS)
def test_no_accountant_supports_them(event):
    for accountant in (dp_accounting.pld.PLDAccountant(), dp_accounting.rdp.RdpAccountant()):
        assert not accountant.supports(event)
        assert not accountant.supports(dp_accounting.SelfComposedDpEvent(event, 2))


@pytest.mark.parametrize("event", EVENTS)
def test_named_tuple_round_trip(event):
    assert dp_accounting.DpEvent.from_named_tuple(event.to_named_tuple()) == event
