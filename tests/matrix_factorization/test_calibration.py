"""Noise multipliers, compared with the accountants that they come from."""

import math

import dp_accounting
import pytest
from dp_accounting import pld

from bevel.errors import FixArgumentsError
from bevel.matrix_factorization import calibration


def epsilon_of(event, delta):
    accountant = pld.PLDAccountant()
    accountant.compose(event)
    return accountant.get_epsilon(delta)


@pytest.mark.parametrize("epsilon, delta", [(0.1, 1e-6), (1.0, 1e-5), (8.0, 1e-9)])
def test_one_gaussian_release(epsilon, delta):
    noise = calibration.gaussian_noise_multiplier(epsilon, delta)
    got = dp_accounting.get_epsilon_gaussian(noise, delta)
    assert got == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize("epsilon, sampling_prob, steps", [(1.0, 0.05, 40), (6.0, 0.5, 10)])
def test_sampled_releases_meet_the_target_and_waste_little(epsilon, sampling_prob, steps):
    noise = calibration.poisson_noise_multiplier(epsilon, 1e-5, sampling_prob, steps)
    sampled = dp_accounting.PoissonSampledDpEvent(
        sampling_prob, dp_accounting.GaussianDpEvent(noise)
    )
    got = epsilon_of(dp_accounting.SelfComposedDpEvent(sampled, steps), 1e-5)
    assert 0.99 * epsilon <= got <= epsilon


def test_sampling_every_example_gives_no_amplification():
    noise = calibration.poisson_noise_multiplier(1.0, 1e-5, 1.0, 16)
    assert noise == 4 * calibration.gaussian_noise_multiplier(1.0, 1e-5)


@pytest.mark.parametrize("epsilon, delta", [(0, 0.1), (-1, 0.1), (math.nan, 0.1), (math.inf, 0.1)])
def test_bad_epsilon(epsilon, delta):
    with pytest.raises(FixArgumentsError, match="positive epsilon"):
        calibration.gaussian_noise_multiplier(epsilon, delta)


@pytest.mark.parametrize("delta", [0, 1, -1e-9, math.nan])
def test_bad_delta(delta):
    with pytest.raises(FixArgumentsError, match="delta"):
        calibration.poisson_noise_multiplier(1.0, delta, 0.1, 1)


def test_bad_sampling():
    for sampling_prob in (0.0, 1.1, math.nan):
        with pytest.raises(FixArgumentsError, match="sampling_prob"):
            calibration.poisson_noise_multiplier(1.0, 1e-5, sampling_prob, 1)
    with pytest.raises(FixArgumentsError, match="steps"):
        calibration.poisson_noise_multiplier(1.0, 1e-5, 0.1, 0)
