"""Noise that two coordinates share is found, and independent noise is not."""

import numpy as np
import pytest

from bevel.auditing.repeated_noise import repeated_noise

BOUND = 0.01


def rest(steps, canaries=4000, copies=1, noise=1.0, seed=0):
    """Noised contributions of canaries, whose noise is repeated `copies` times."""
    rng = np.random.default_rng(seed)
    drawn = np.tile(rng.normal(size=(steps, canaries // copies)), copies) * noise
    return (BOUND * (drawn + rng.integers(-1, 2, (steps, canaries)))).astype(np.float32)


@pytest.mark.parametrize("steps", [1, 2, 12])
@pytest.mark.parametrize("noise", [0.5, 1.0, 20.0])
def test_repeated_noise_is_found_whatever_the_canaries_contribute(steps, noise):
    assert repeated_noise(rest(steps, copies=2, noise=noise), BOUND, noise * BOUND) > 1000


@pytest.mark.parametrize("steps", [1, 2, 12])
def test_independent_noise_is_no_alarm(steps):
    for seed in range(20):
        assert repeated_noise(rest(steps, seed=seed, noise=0.6), BOUND, 0.6 * BOUND) == 0


def test_noise_that_is_too_small_to_tell_is_left_to_the_scores():
    assert repeated_noise(rest(2, copies=2, noise=0.1), BOUND, 0.1 * BOUND) == 0


def test_rounding_of_large_sums_is_allowed_for():
    found = rest(3, copies=2).astype(np.float64)
    found += 1e-7 * np.random.default_rng(1).normal(size=found.shape)  # 1e-5 of the bound
    assert repeated_noise(found, BOUND, BOUND, rounding=10.0) > 1000
