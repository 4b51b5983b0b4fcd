"""Epsilons and deltas: known values, the guarantee on neighbours, and monotonicity."""

import functools
import itertools
import math

import dp_accounting
import numpy as np
import pytest
from compare import FULL
from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hockey_stick import either_way, outputs
from hypothesis import given, settings
from hypothesis import strategies as st

from bevel.accounting import (
    delta,
    dpsgd_event,
    epsilon,
    epsilon_after_each_step,
    fixed_dpsgd_event,
    gaussian_event,
    truncated_dpsgd_event,
)
from bevel.errors import FixArgumentsError

ADD = {"neighboring_relation": "ADD_OR_REMOVE_ONE"}
ONE = {"neighboring_relation": "REPLACE_ONE"}
SPECIAL = {"neighboring_relation": "REPLACE_SPECIAL"}
# Coarser rounding only increases epsilon. It is enough for properties, and ten times as fast.
COARSE = {"accountant_fn": functools.partial(PLDAccountant, value_discretization_interval=1e-3)}


# (n, batch, noise, epochs, delta): epsilon by RDP, from the tests of TensorFlow Privacy.
PUBLISHED = {
    (60_000, 150, 1.3, 15, 1e-5): 0.7242234026109595,
    (100_000, 100, 1.0, 30, 1e-7): 1.4154988495444845,
}


@pytest.mark.parametrize("run", PUBLISHED)
def test_published_values_of_dpsgd(run):
    n, batch, noise, epochs, delta_ = run
    event = dpsgd_event(noise, math.ceil(epochs * n / batch), sampling_prob=batch / n)
    rdp = epsilon(event, delta=delta_, accountant_fn=RdpAccountant, **ADD)
    assert rdp == pytest.approx(PUBLISHED[run], rel=1e-9)
    assert 0.7 * rdp < epsilon(event, delta=delta_, **ADD) < rdp


def test_the_moments_accountant_of_abadi_et_al():
    # Section 3 of the paper: q = 0.01, sigma = 4, 10,000 steps: epsilon 1.26 at delta 1e-5.
    event = dpsgd_event(4.0, 10_000, sampling_prob=0.01)
    assert 0.9 < epsilon(event, delta=1e-5, **ADD) < 1.26


@pytest.mark.parametrize("noise", [0.7, 1.0, 5.0])
@pytest.mark.parametrize("eps", [0.0, 0.5, 2.0])
def test_delta_of_the_gaussian(noise, eps):
    def closed_form(sigma):
        cdf = dp_accounting.gaussian_mechanism._norm.cdf
        return cdf(0.5 / sigma - eps * sigma) - math.exp(eps) * cdf(-0.5 / sigma - eps * sigma)

    assert delta(gaussian_event(noise), epsilon=eps, **ADD) == pytest.approx(
        closed_form(noise), rel=1e-3
    )
    assert delta(gaussian_event(noise), epsilon=eps, **ONE) == pytest.approx(
        closed_form(noise / 2), rel=1e-3
    )


# The guarantee on neighbours, by integrating over the outputs of one step in one dimension.


@pytest.mark.parametrize("p, eps", [(0.2, 0.1), (0.7, 1.0)])
def test_poisson_sampling_is_as_private_as_its_event_says(p, eps):
    event = dpsgd_event(1.1, 1, sampling_prob=p)
    present, absent, opposite = {0: 1 - p, 1: p}, {0: 1.0}, {0: 1 - p, -1: p}
    truth = either_way(eps, present, absent, 1.1)
    assert delta(event, epsilon=eps, **ADD) == pytest.approx(truth, rel=1e-3)
    truth = either_way(eps, present, opposite, 1.1)
    assert delta(event, epsilon=eps, **ONE) == pytest.approx(truth, rel=1e-3)


@pytest.mark.parametrize("angle", [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0])
def test_under_replace_one_opposite_contributions_are_the_worst(angle):
    # The event covers contributions at any angle to each other, here in two dimensions.
    p, noise, eps = 0.4, 0.8, 0.7
    axis = np.linspace(-6, 6, 601)
    x, y = np.meshgrid(axis, axis)

    def density(mx, my):
        return np.exp(-((x - mx) ** 2 + (y - my) ** 2) / (2 * noise**2)) / (2 * np.pi * noise**2)

    one = (1 - p) * density(0, 0) + p * density(1, 0)
    other = (1 - p) * density(0, 0) + p * density(np.cos(angle), np.sin(angle))
    truth = np.maximum(one - np.exp(eps) * other, 0).sum() * (axis[1] - axis[0]) ** 2
    assert truth <= delta(dpsgd_event(noise, 1, sampling_prob=p), epsilon=eps, **ONE) + 1e-6


def truncated_law(size, p, limit):
    law = {}
    for k in range(size + 1):
        for sampled in itertools.combinations(range(size), k):
            kept = list(itertools.combinations(sampled, min(limit, k)))
            for subset in kept:
                chance = p**k * (1 - p) ** (size - k) / len(kept)
                law[subset] = law.get(subset, 0) + chance
    return law


@pytest.mark.parametrize("others", [1.0, -1.0])
@pytest.mark.parametrize("eps", [0.1, 1.0])
@pytest.mark.parametrize("p, limit", [(0.5, 1), (0.5, 2), (0.9, 1), (0.2, 2)])
def test_truncated_batches_are_at_least_as_private_as_their_event_says(p, limit, eps, others):
    law = truncated_law(4, p, limit)
    event = truncated_dpsgd_event(
        1.3, 1, sampling_prob=p, num_examples=4, truncated_batch_size=limit
    )
    here = outputs(law, [1.0, others, others, others])
    for value, relation in [(0.0, SPECIAL), (-1.0, ONE)]:
        there = outputs(law, [value, others, others, others])
        assert either_way(eps, here, there, 1.3) <= delta(event, epsilon=eps, **COARSE, **relation)


def test_the_event_of_poisson_sampling_does_not_cover_truncated_batches():
    # Why the truncated event is needed: a neighbour takes the place of another example.
    law = truncated_law(4, 0.9, 1)
    here, there = outputs(law, [1.0, -1, -1, -1]), outputs(law, [-1.0, -1, -1, -1])
    truth = either_way(0.1, here, there, 1.3)
    sampled = dpsgd_event(1.3, 1, sampling_prob=0.25)
    assert truth > delta(sampled, epsilon=0.1, **SPECIAL)


@pytest.mark.parametrize("others", [1.0, -1.0])
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_fixed_size_batches_are_at_least_as_private_as_their_event_says(batch, others):
    chosen = list(itertools.combinations(range(4), batch))
    law = dict.fromkeys(chosen, 1 / len(chosen))
    event = fixed_dpsgd_event(3.0, 1, dataset_size=4, batch_size=batch)
    here, there = outputs(law, [1.0, *[others] * 3]), outputs(law, [-1.0, *[others] * 3])
    for eps in (0.2, 1.0):
        assert either_way(eps, here, there, 3.0) <= delta(event, epsilon=eps, **ONE)


# Monotonicity and limits.


@settings(max_examples=16 if FULL else 4)
@given(st.floats(0.8, 5), st.integers(1, 40), st.floats(0.01, 0.9), st.floats(1.05, 2))
def test_epsilon_rises_with_steps_and_sampling_and_falls_with_noise(noise, steps, p, more):
    def cost(noise, steps, p):
        return epsilon(dpsgd_event(noise, steps, sampling_prob=p), delta=1e-4, **COARSE, **ADD)

    base = cost(noise, steps, p)
    assert cost(noise * more, steps, p) <= base + 1e-9
    assert cost(noise, steps + 3, p) >= base - 1e-9
    assert cost(noise, steps, min(1.0, p * more)) >= base - 1e-3


@settings(max_examples=16 if FULL else 4)
@given(st.floats(0.8, 5), st.floats(0.05, 1), st.floats(1e-8, 1e-2))
def test_delta_and_epsilon_are_inverse(noise, p, delta_):
    event = dpsgd_event(noise, 4, sampling_prob=p)
    eps = epsilon(event, delta=delta_, **COARSE, **ADD)
    found = delta(event, epsilon=eps, **COARSE, **ADD)
    assert found <= delta_ * (1 + 1e-6)
    assert eps == 0 or found == pytest.approx(delta_, rel=1e-2)


def test_without_noise_there_is_no_privacy():
    for event in (gaussian_event(0.0), dpsgd_event(0.0, 3, sampling_prob=0.1)):
        assert epsilon(event, delta=1e-5, **ADD) == math.inf
        assert delta(event, epsilon=3.0, **ADD) == 1.0


def test_sampling_probability_zero_costs_nothing():
    assert epsilon(dpsgd_event(1.0, 3, sampling_prob=0.0), delta=1e-5, **ADD) == 0.0


def test_rdp_that_lost_precision_does_not_report_zero():
    event = dpsgd_event(1e8, 10**6, sampling_prob=0.3)
    assert RdpAccountant().compose(event).get_epsilon(1e-9) == 0  # what dp-accounting reports
    with pytest.raises(FixArgumentsError, match="rounding makes them negative"):
        epsilon(event, delta=1e-9, accountant_fn=RdpAccountant, **ADD)
    with pytest.raises(FixArgumentsError, match="rounding makes them negative"):
        delta(event, epsilon=0.1, accountant_fn=RdpAccountant, **ADD)


@pytest.mark.parametrize("wrong", [{"delta": 0.0}, {"delta": 1.0}, {"neighboring_relation": "all"}])
def test_wrong_input(wrong):
    with pytest.raises(FixArgumentsError, match=next(iter(wrong))):
        epsilon(gaussian_event(1.0), **{"delta": 1e-5, **ADD, **wrong})
    with pytest.raises(FixArgumentsError, match="epsilon=-1"):
        delta(gaussian_event(1.0), epsilon=-1, **ADD)


def test_the_relation_has_no_default():
    with pytest.raises(TypeError, match="neighboring_relation"):
        epsilon(gaussian_event(1.0), delta=1e-5)


def test_epsilon_after_each_step_is_a_bound_and_exact_at_its_points():
    def make(steps):
        return dpsgd_event(1.2, steps, sampling_prob=0.1)

    curve = epsilon_after_each_step(make, 20, delta=1e-5, points=6, **ADD)
    assert curve.shape == (20,) and np.all(np.diff(curve) >= 0)
    truth = np.array([epsilon(make(t), delta=1e-5, **COARSE, **ADD) for t in range(1, 21)])
    assert np.all(curve >= truth - 1e-3) and np.sum(curve <= truth + 1e-3) >= 6
    assert curve[-1] == epsilon(make(20), delta=1e-5, **ADD)
    every = epsilon_after_each_step(make, 5, delta=1e-5, points=50, **ADD)
    assert every == pytest.approx(truth[:5], abs=1e-3)
    one = epsilon_after_each_step(make, 1, delta=1e-5, **ADD)
    assert one.tolist() == [epsilon(make(1), delta=1e-5, **ADD)]


def test_epsilon_after_each_step_with_a_given_accountant():
    def make(steps):
        return dpsgd_event(1.2, steps, sampling_prob=0.1)

    curve = epsilon_after_each_step(
        make, 4, delta=1e-5, accountant_fn=RdpAccountant, points=9, **ADD
    )
    alone = [RdpAccountant().compose(make(t)).get_epsilon(1e-5) for t in range(1, 5)]
    assert curve == pytest.approx(alone)


@pytest.mark.parametrize(
    ("bare", "relation"),
    [
        (dp_accounting.NonPrivateDpEvent(), NeighboringRelation.ADD_OR_REMOVE_ONE),
        (gaussian_event(0.0), NeighboringRelation.REPLACE_ONE),
        (dpsgd_event(0.0, 2, sampling_prob=0.1), NeighboringRelation.REPLACE_SPECIAL),
    ],
)
def test_a_part_without_privacy_makes_epsilon_infinite(bare, relation):
    event = dp_accounting.ComposedDpEvent([bare, gaussian_event(3.0)])
    assert epsilon(event, delta=1e-5, neighboring_relation=relation) == math.inf
    assert delta(event, epsilon=1.0, neighboring_relation=relation) == 1.0


def test_almost_no_noise_composed_with_much_noise():
    event = dp_accounting.ComposedDpEvent([gaussian_event(1e-4), gaussian_event(1.0)])
    found = epsilon(event, delta=1e-5, neighboring_relation="ADD_OR_REMOVE_ONE")
    assert 5e7 < found < 5.2e7  # about 1 / (2 noise^2)
