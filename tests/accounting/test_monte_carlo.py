"""Sampling gives a valid bound: compared with closed forms, integrals and the mechanism."""

import itertools
import math

import dp_accounting
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from bevel.accounting import (
    MonteCarlo,
    balls_in_bins_event,
    delta,
    epsilon,
    gaussian_event,
    random_allocation_event,
)
from bevel.accounting.monte_carlo import (
    EPSILONS,
    STATED_SEED,
    SampledLosses,
    positive_losses,
    sampled_losses,
    upper_confidence_bound,
)
from bevel.errors import FixArgumentsError

ADD = {"neighboring_relation": "ADD_OR_REMOVE_ONE"}
SAMPLES = MonteCarlo(100_000, 1e-4, seed=7)


def on_grid(eps):
    """The epsilon of the grid closest to `eps`."""
    return float(EPSILONS[np.argmin(np.abs(EPSILONS - eps))])


@pytest.mark.parametrize("failure", [0.3, 0.05])
@pytest.mark.parametrize("p", [0.003, 0.05, 0.5])
def test_the_bound_fails_no_more_often_than_it_says(p, failure):
    rng = np.random.default_rng(0)
    means = rng.binomial(200, p, 4000) / 200
    failed = np.mean([upper_confidence_bound(float(mean), 200, failure) < p for mean in means])
    assert failed <= failure + 3 * math.sqrt(failure / 4000)


@given(st.floats(0, 1), st.integers(1, 10**8), st.floats(1e-12, 0.5))
def test_the_bound_is_above_the_mean_and_below_one(mean, count, failure):
    bound = upper_confidence_bound(mean, count, failure)
    assert mean <= bound <= 1
    if mean == 0:
        assert bound == pytest.approx(-math.expm1(math.log(failure) / count), rel=1e-6)


def test_the_bound_of_no_exceedance_is_the_rule_of_three():
    assert upper_confidence_bound(0.0, 1000, 0.05) == pytest.approx(3 / 1000, rel=5e-3)


@pytest.mark.parametrize("noise, uses", [(1.0, 1), (3.0, 4)])
def test_one_bin_is_the_gaussian(noise, uses):
    event = balls_in_bins_event(noise, uses, cycle_length=1)
    truth = dp_accounting.get_epsilon_gaussian(noise / uses**0.5, 1e-2)
    found = epsilon(event, delta=1e-2, monte_carlo=SAMPLES, **ADD)
    assert truth <= found <= 1.1 * truth


def two_bins(eps, noise, gram):
    """delta of (N(m1) + N(m2)) / 2 against N(0), by integrating over the plane of m1 and m2."""
    root = np.linalg.cholesky(gram)
    axis = np.linspace(-9 * noise, 9 * noise + 2, 901)
    x, y = np.meshgrid(axis, axis)

    def density(mean):
        square = (x - mean[0]) ** 2 + (y - mean[1]) ** 2
        return np.exp(-square / (2 * noise**2)) / (2 * np.pi * noise**2)

    p = (density(root[0]) + density(root[1])) / 2
    q = density([0.0, 0.0])
    area = (axis[1] - axis[0]) ** 2
    both = [np.maximum(a - np.exp(eps) * b, 0).sum() * area for a, b in [(p, q), (q, p)]]
    return max(both)


@pytest.mark.parametrize("coefs", [(1.0,), (1.0, 0.7), (1.0, -0.7)])
def test_two_bins_with_correlated_noise(coefs):
    event = balls_in_bins_event(0.9, 4, cycle_length=2, strategy=coefs)
    shifts = event.shifts()
    for eps in (on_grid(0.2), on_grid(1.0)):
        truth = two_bins(eps, 0.9, shifts @ shifts.T)
        losses = sampled_losses(event, SAMPLES)
        assert max(losses.means(eps)) == pytest.approx(truth, rel=0.03)
        assert truth < losses.delta(eps) < 1.3 * truth + 1e-3


def test_delta_is_that_of_the_worse_direction():
    event = balls_in_bins_event(0.7, 6, cycle_length=6)
    present, absent = sampled_losses(event, SAMPLES).means(1.0)
    assert present > 1.5 * absent
    assert delta(event, epsilon=1.0, monte_carlo=SAMPLES, **ADD) > present


def test_random_bins_amplify_privacy():
    plain = epsilon(gaussian_event(1.0, 2), delta=1e-2, **ADD)
    hidden = epsilon(
        balls_in_bins_event(1.0, 20, cycle_length=10), delta=1e-2, monte_carlo=SAMPLES, **ADD
    )
    assert hidden < 0.75 * plain


@pytest.mark.parametrize("seed", range(3))
def test_adaptive_contributions_stay_below_the_bound(seed):
    # Tests the claim of the proof on the mechanism: contributions of norm 1 in the plane that
    # depend on earlier outputs, with entries of C of both signs, stay below the sampled pair.
    rng = np.random.default_rng(seed)
    matrix = np.tril(rng.normal(size=(4, 4))) + 2 * np.eye(4)
    noise, count, bins = 1.5, 200_000, 2
    event = balls_in_bins_event(noise, 4, cycle_length=bins, strategy=matrix)
    scale = np.linalg.norm(matrix, axis=0).max()
    turn = rng.normal(size=(4, 4, 2))

    def ratio(used):
        """log(P / Q) at runs in which the example is in bin `used` (or in none)."""
        outputs, log_weights = np.zeros((count, 0, 2)), np.zeros((count, bins))
        chosen = np.zeros((count, 0, 2))
        for t in range(4):
            angle = np.einsum("nsd,sd->n", outputs, turn[t, :t]) + seed
            unit = np.stack([np.cos(angle), np.sin(angle)], axis=1)
            chosen = np.concatenate([chosen, unit[:, None]], axis=1)
            shift = np.zeros((count, bins, 2))
            for s in range(t + 1):
                shift[:, s % bins] += matrix[t, s] / scale / noise * chosen[:, s]
            output = rng.normal(size=(count, 2))
            output += shift[np.arange(count), used] if used is not None else 0
            outputs = np.concatenate([outputs, output[:, None]], axis=1)
            log_weights += np.einsum("nbd,nd->nb", shift, output) - (shift**2).sum(axis=2) / 2
        return np.log(np.exp(log_weights).mean(axis=1))

    for eps in (0.3, 1.0):
        present = ratio(rng.integers(bins, size=count))
        absent = -ratio(None)
        real = [np.mean(np.maximum(0, -np.expm1(eps - x))) for x in (present, absent)]
        assert max(real) <= max(sampled_losses(event, SAMPLES).means(eps)) + 2e-3


def subset_losses(noise, steps, uses, count, present, rng):
    """Random allocation by its definition: the mixture over all sets of steps."""
    chosen = list(itertools.combinations(range(steps), uses))
    shifts = np.array([[t in subset for t in range(steps)] for subset in chosen]) / noise
    x = rng.normal(size=(count, steps))
    if present:
        x += shifts[rng.integers(len(chosen), size=count)]
    exponents = x @ shifts.T - (shifts**2).sum(axis=1) / 2
    ratio = np.log(np.exp(exponents).mean(axis=1))
    return ratio if present else -ratio


@pytest.mark.parametrize("steps, uses", [(5, 1), (5, 2), (6, 3), (4, 4)])
def test_random_allocation_is_at_least_as_private_as_its_event_says(steps, uses):
    event = random_allocation_event(1.2, steps, total_participations=uses)
    rng = np.random.default_rng(1)
    found = sampled_losses(event, SAMPLES)
    for eps in (0.2, 1.0):
        for present, bound in zip((True, False), found.means(eps), strict=True):
            real = subset_losses(1.2, steps, uses, 100_000, present, rng)
            truth = np.mean(np.maximum(0, -np.expm1(eps - real)))
            assert truth <= bound + 4e-3
            if uses in (1, steps):  # revealing the partition gives nothing away
                assert truth == pytest.approx(bound, abs=4e-3)


def test_the_bound_covers_the_truth_with_its_probability():
    # With many small samples, the bound almost never falls below the truth, while the plain
    # estimate does so half of the time.
    event = balls_in_bins_event(1.0, 1, cycle_length=1)
    eps = on_grid(0.5)
    cdf = scipy.stats.norm.cdf
    truth = cdf(0.5 - eps) - math.exp(eps) * cdf(-0.5 - eps)
    below = low = 0
    for seed in range(60):
        losses = sampled_losses(event, MonteCarlo(500, 0.2, seed=seed))
        low += losses.delta(eps) < truth
        below += max(losses.means(eps)) < truth
    assert low == 0 and 5 < below < 50


def test_the_failure_probability_is_part_of_delta():
    losses = SampledLosses((np.empty(0), np.empty(0)), MonteCarlo(10**9, 1e-3, seed=0))
    assert losses.delta(1.0) == pytest.approx(1e-3, rel=1e-3)
    assert losses.delta(1.0) > 1e-3


def test_epsilons_between_those_of_the_grid_take_the_delta_of_the_one_below():
    losses = sampled_losses(balls_in_bins_event(1.0, 1, cycle_length=1), SAMPLES)
    below, above = EPSILONS[700], EPSILONS[701]
    assert losses.delta((below + above) / 2) == losses.delta(below) > losses.delta(above)
    assert losses.delta(1e6) <= losses.delta(above) and losses.delta(0.0) >= losses.delta(below)


def test_no_noise_and_no_use():
    rng = np.random.default_rng(0)
    none = balls_in_bins_event(0.0, 4, cycle_length=2)
    assert np.all(positive_losses(none, 10, True, rng) == math.inf)
    assert epsilon(none, delta=1e-2, monte_carlo=SAMPLES, **ADD) == math.inf
    rarely = balls_in_bins_event(1.0, 1, cycle_length=400)
    assert epsilon(rarely, delta=1e-2, monte_carlo=MonteCarlo(20_000, 1e-4, 0), **ADD) < 0.2


def test_too_few_samples_for_a_delta_is_an_error():
    event = balls_in_bins_event(1.0, 4, cycle_length=2)
    with pytest.raises(FixArgumentsError, match="cannot show delta=1e-05"):
        epsilon(event, delta=1e-5, monte_carlo=SAMPLES, **ADD)


def test_default_samples_are_enough():
    settings = MonteCarlo.for_delta(1e-2)
    assert settings is MonteCarlo.for_delta(1e-2)
    assert settings.num_samples == 10_000 and settings.failure_probability == 1e-4
    event = balls_in_bins_event(1.0, 4, cycle_length=2)
    found = epsilon(event, delta=1e-2, **ADD)
    assert found == epsilon(event, delta=1e-2, **ADD) < math.inf


def test_what_is_stated_does_not_depend_on_the_process():
    """A random seed gave another epsilon in each: a statement could not be verified elsewhere."""
    seeds = {MonteCarlo.for_delta(delta).seed for delta in (1e-2, 2e-2)}
    assert seeds == {STATED_SEED} and MonteCarlo(100, 1e-3).seed != STATED_SEED


def test_a_delta_that_needs_too_many_samples_is_refused():
    with pytest.raises(FixArgumentsError, match="which is too many"):
        epsilon(balls_in_bins_event(1.0, 4, cycle_length=2), delta=1e-9, **ADD)


def test_wrong_input():
    event = balls_in_bins_event(1.0, 4, cycle_length=2)
    with pytest.raises(FixArgumentsError, match="REPLACE_ONE"):
        epsilon(event, delta=1e-2, neighboring_relation="REPLACE_ONE")
    with pytest.raises(FixArgumentsError, match="leave out accountant_fn"):
        epsilon(event, delta=1e-2, accountant_fn=dp_accounting.pld.PLDAccountant, **ADD)
    with pytest.raises(FixArgumentsError, match="the samples needed depend"):
        delta(event, epsilon=1.0, **ADD)
    for wrong in ((0, 1e-3), (10, 0.0), (10, 1.0)):
        with pytest.raises(FixArgumentsError, match=r"num_samples|failure_probability"):
            MonteCarlo(*wrong)
