"""Samples of privacy losses, compared with the deltas of the events."""

import numpy as np
import pytest

import bevel.experimental.monte_carlo
from bevel.accounting import MonteCarlo, amplified_bandmf_event, balls_in_bins_event
from bevel.accounting import delta as bound
from bevel.accounting.monte_carlo import sampled_losses
from bevel.batch_selection import (
    BallsInBinsSampling,
    BMinSepSampling,
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
    assert sample.shape == (6, COUNT)
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
    np.testing.assert_allclose(losses, probability * np.sum(sample - 0.5, axis=0) / 4, atol=1e-9)


def patterns(sampler):
    """All patterns of uses of an example with their probabilities, by enumeration."""
    found = {}

    def extend(uses, free_from, weight):
        step = len(uses)
        if step == sampler.iterations:
            found[uses] = found.get(uses, 0.0) + weight
        elif step < free_from:
            extend((*uses, 0), free_from, weight)
        else:
            extend((*uses, 0), free_from, weight * (1 - sampler.sampling_prob))
            extend((*uses, 1), step + sampler.min_sep, weight * sampler.sampling_prob)

    slots = sampler.min_sep - 1
    rate = sampler.sampling_prob / (1 + sampler.sampling_prob * slots)
    if not sampler.warm_start:
        extend((), 0, 1.0)
    else:
        extend((), 0, 1 - rate * slots)
        for k in range(1, slots + 1):
            extend((), k, rate)
    return np.array(list(found), float), np.array(list(found.values()))


SEPARATED = [
    BMinSepSampling(0.4, 6, min_sep=2),
    BMinSepSampling(0.4, 6, min_sep=2, warm_start=False),
    BMinSepSampling(0.2, 5, min_sep=4),
    BMinSepSampling(1.0, 5, min_sep=3, warm_start=False),
    BMinSepSampling(1.0, 5, min_sep=3),
]


@pytest.mark.parametrize("sampler", SEPARATED)
@pytest.mark.parametrize("column", [np.ones(1), COLUMN, -3 * COLUMN])
def test_min_separation_losses_are_those_of_the_mixture_over_all_patterns(sampler, column):
    n, noise = sampler.iterations, 0.8
    losses, sample = get_privacy_loss_sample(sampler, noise, column, 3, num_samples=40)
    assert losses.shape == (40,) and sample.shape == (n, 40)
    uses, weights = patterns(sampler)
    assert weights.sum() == pytest.approx(1)
    unit = np.abs(column) / np.linalg.norm(column)
    C = sum(np.eye(n, k=-j) * c for j, c in enumerate(unit))
    shifts = uses @ C.T
    exponents = (shifts @ sample - (shifts**2).sum(1)[:, None] / 2) / noise**2
    np.testing.assert_allclose(losses, np.log(weights @ np.exp(exponents)), atol=1e-9)


@pytest.mark.parametrize("sampler", SEPARATED[:3])
def test_shifts_have_the_probabilities_of_the_sampler(sampler):
    """Without noise, samples show the uses; they are those of a real example of the sampler."""
    sample = generate_sample(sampler, 1e-9, np.ones(1), 4, num_samples=20_000)
    real = np.zeros((sampler.iterations, 20_000))
    for step, batch in enumerate(sampler.batch_iterator(20_000, rng=5)):
        real[step, batch] = 1
    uses, weights = patterns(sampler)
    code = 2 ** np.arange(sampler.iterations)
    for found in (np.round(sample), real):
        counts = np.bincount((code @ found).astype(int), minlength=code.sum() + 1)
        np.testing.assert_allclose(
            counts[(uses @ code).astype(int)] / 20_000, weights, atol=5 * 0.5 / np.sqrt(20_000)
        )


def test_separation_of_one_is_poisson_sampling():
    sample = generate_sample(POISSON, 1.0, np.ones(1), 6, num_samples=10)
    one = CyclicPoissonSampling(0.3, 6)
    np.testing.assert_allclose(
        compute_privacy_loss(one, sample, 1.0, np.ones(1)),
        compute_privacy_loss(BMinSepSampling(0.3, 6, min_sep=1), sample, 1.0, np.ones(1)),
    )


def test_an_auxiliary_array_is_rejected():
    sample = generate_sample(BINS, 1.0, COLUMN, 6)
    with pytest.raises(FixArgumentsError, match="pass no aux"):
        compute_privacy_loss(BINS, sample, 1.0, COLUMN, aux=np.ones(1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((FixedBatchSampling(2, 4), 1.0, COLUMN), "no dominating pair is known"),
        ((CyclicPoissonSampling(0.3, 4, 2), 1.0, np.ones(1)), "no dominating pair is known"),
        ((CyclicPoissonSampling(0.3, 4), 1.0, COLUMN), "num_bands=2"),
        ((BMinSepSampling(0.3, 4, 1), 1.0, COLUMN), "num_bands=2"),
        ((BMinSepSampling(0.3, 4, 2, True, 5), 1.0, COLUMN), "no dominating pair is known"),
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
