"""Bands for sampled batches: the best of those tried, at the requested privacy."""

import functools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld

from bevel.errors import FixArgumentsError
from bevel.matrix_factorization import toeplitz
from bevel.matrix_factorization.toeplitz import amplified

SETTING = {"dataset_size": 400, "expected_batch_size": 50, "delta": 1e-5}


def fake_noise_multiplier(epsilon, delta, sampling_prob, steps):
    """Noise with amplification by sampling at small epsilon, and none at large epsilon."""
    return sampling_prob * math.sqrt(steps) if epsilon < 1 else 1.0


optimum = functools.cache(toeplitz.optimize_banded_toeplitz)


@pytest.mark.parametrize("epsilon, most", [(0.5, 1), (5.0, 8)])
def test_no_other_number_of_bands_has_a_smaller_error(epsilon, most, monkeypatch):
    monkeypatch.setattr(amplified, "poisson_noise_multiplier", fake_noise_multiplier)
    monkeypatch.setattr(amplified, "optimize_banded_toeplitz", lambda n, b, **_: optimum(n, b))
    n = 12
    coefs, stddev = toeplitz.optimize_coefs_for_amplifications(n, epsilon=epsilon, **SETTING)
    assert len(coefs) == most and np.linalg.norm(coefs) == pytest.approx(1)
    best = stddev**2 * toeplitz.loss(coefs, n)
    for bands in (1, 2, 4, 8):
        noise = fake_noise_multiplier(epsilon, 1e-5, 50 / (400 // bands), -(-n // bands))
        loss = toeplitz.loss(optimum(n, bands), n)
        assert best <= noise**2 * loss * (1 + 1e-9)


def test_the_noise_meets_the_target():
    n = 6
    coefs, stddev = toeplitz.optimize_coefs_for_amplifications(n, epsilon=2.0, **SETTING)
    bands = len(coefs)
    sampled = dp_accounting.PoissonSampledDpEvent(
        50 / (400 // bands), dp_accounting.GaussianDpEvent(stddev)
    )
    accountant = pld.PLDAccountant()
    accountant.compose(dp_accounting.SelfComposedDpEvent(sampled, -(-n // bands)))
    assert 1.98 <= accountant.get_epsilon(1e-5) <= 2.0


def test_bad_input():
    valid = {"dataset_size": 10, "expected_batch_size": 5, "epsilon": 1.0, "delta": 1e-5}
    for change, message in [
        ({"expected_batch_size": 11}, "at most 10"),
        ({"dataset_size": 0}, "dataset_size"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"delta": 1.5}, "delta"),
        ({"n": 0}, "n=0"),
    ]:
        with pytest.raises(FixArgumentsError, match=message):
            toeplitz.optimize_coefs_for_amplifications(**({"n": 4} | valid | change))
