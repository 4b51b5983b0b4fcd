"""Samples of privacy losses, compared with the deltas of the events."""

import numpy as np
import pytest

import bevel.experimental.monte_carlo
from bevel.accounting import MonteCarlo, amplified_bandmf_event, balls_in_bins_event
from bevel.accounting import delta as bound
from bevel.accounting.monte_carlo import sampled_losses
from bevel.batch_selection import (
    BallsInBinsSampling,
    CyclicPoissonSampling,
    FixedBatchSampling,
)
from bevel.errors import FixArgumentsError
from bevel.experimental.monte_carlo.delta_calculation import delta_from_epsilon_and_samples
from bevel.experimental.monte_carlo.sample_generation import (
    compute_privacy_loss,
    generate_sample,
    get_privacy_loss_sample,
)

COLUMN = np.array([1.0, 0.5])
BINS = BallsInBinsSampling(6, 3)
POISSON = CyclicPoissonSampling(0.3, 6, cycle_length=2)
COUNT = 200_000


@pytest.mark.parametrize("positive", [True, False])
def test_balls_in_bins_losses_are_those_of_the_event(positive):
    losses, sample = get_privacy_loss_sample(BINS, 1.0, COLUMN, 1, positive, COUNT)
    assert sample.shape == (COUNT, 6)
    event = balls_in_bins_event(1.0, 6, cycle_length=3, strategy=COLUMN)
    means = sampled_losses(event, MonteCarlo(COUNT, 1e-6, seed=2)).means(0.5)
    expected = means[0 if positive else 1]
    assert delta_from_epsilon_and_samples(0.5, losses) == pytest.approx(expected, rel=0.03)


def test_cyclic_poisson_losses_are_those_of_the_event():
    deltas = [
        delta_from_epsilon_and_samples(
            0.5, get_privacy_loss_sample(POISSON, 1.0, COLUMN, 1, positive, COUNT)[0]
        )
        for positive in (True, False)
    ]
    event = amplified_bandmf_event(1.0, 6, num_bands=2, sampling_prob=0.3)
    exact = bound(event, epsilon=0.5, neighboring_relation="REPLACE_SPECIAL")
    assert max(deltas) == pytest.approx(exact, rel=0.03)


def test_samples_are_those_of_the_seed():
    one, two = (generate_sample(BINS, 1.0, COLUMN, 5, num_samples=4) for _ in range(2))
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one, generate_sample(BINS, 1.0, COLUMN, num_samples=4))
    np.testing.assert_array_equal(
        compute_privacy_loss(BINS, one, 1.0, COLUMN),
        get_privacy_loss_sample(BINS, 1.0, COLUMN, 5, num_samples=4)[0],
    )


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_sampling_probabilities_of_zero_and_one(probability):
    sampler = CyclicPoissonSampling(probability, 4)
    losses, sample = get_privacy_loss_sample(sampler, 2.0, np.ones(1), 1, True, 50)
    np.testing.assert_allclose(losses, probability * np.sum(sample - 0.5, axis=1) / 4, atol=1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((FixedBatchSampling(2, 4), 1.0, COLUMN), "no dominating pair is known"),
        ((CyclicPoissonSampling(0.3, 4, 2), 1.0, np.ones(1)), "no dominating pair is known"),
        ((CyclicPoissonSampling(0.3, 4), 1.0, COLUMN), "num_bands=2"),
        ((BINS, 0.0, COLUMN), "noise_multiplier=0.0"),
        ((BINS, 1.0, np.zeros(2)), "not all zero"),
    ],
)
def test_unproven_pairs_are_rejected(arguments, message):
    with pytest.raises(FixArgumentsError, match=message):
        generate_sample(*arguments)
    with pytest.raises(FixArgumentsError, match="pass the result of generate_sample"):
        compute_privacy_loss(BINS, np.zeros(3), 1.0, COLUMN)


def test_the_names_of_jax_privacy():
    parts = bevel.experimental.monte_carlo
    assert callable(parts.sample_generation.generate_sample)
    assert callable(parts.delta_calculation.get_overall_delta)
