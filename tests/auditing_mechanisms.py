"""Mechanisms of known privacy, as scores of canaries: lower bounds must not exceed it."""

import numpy as np


def randomised_response(rng, held_in, epsilon):
    """Reports membership, true with the largest probability that epsilon-DP allows."""
    truth = rng.random(held_in.shape) < 1 / (1 + np.exp(-epsilon))
    return np.where(truth, held_in, ~held_in).astype(float)


def laplace(rng, held_in, epsilon):
    """Membership plus Laplace noise: epsilon-DP, and tight at every threshold outside [0, 1]."""
    return held_in + rng.laplace(scale=1 / epsilon, size=held_in.shape)


def gaussian(rng, held_in, mu):
    """Membership plus Gaussian noise: mu-GDP, and tight at every threshold."""
    return mu * held_in + rng.normal(size=held_in.shape)


def two_groups(mechanism, rng, parameter, canaries):
    """Scores of as many held-in as held-out canaries, one training run for each."""
    scores = [mechanism(rng, np.full(canaries, group), parameter) for group in (True, False)]
    return scores[0], scores[1]


def one_run(mechanism, rng, parameter, canaries):
    """Scores of held-in and held-out canaries of one run, with a fair coin for each of them."""
    held_in = np.append(rng.random(canaries - 2) < 0.5, [True, False])  # no group is empty
    scores = mechanism(rng, held_in, parameter)
    return scores[held_in], scores[~held_in]
