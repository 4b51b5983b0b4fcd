"""Private selection costs no more than its bound, for every ranking of the outcomes.

The truth is the law of the released outcome itself, summed over the numbers of runs
(selections.py). It shares nothing with the bound but the definition of the distributions.
"""

import functools
import itertools
import math

import dp_accounting
import numpy as np
import pytest
import scipy.special
import scipy.stats
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.pld import privacy_loss_distribution as distributions
from dp_accounting.rdp import RdpAccountant
from selections import delta, law_of_runs, released, worst_order

from bevel.accounting import (
    dpsgd_event,
    epsilon,
    gaussian_event,
    private_selection_event,
    random_allocation_event,
    zcdp_event,
)
from bevel.accounting.private_selection import halting_probability, selected
from bevel.errors import FixArgumentsError

POISSON = math.inf
RUNS = [(2.0, 1.0), (2.0, POISSON), (8.0, 0.0), (8.0, 0.5), (8.0, 1.0), (8.0, POISSON), (40.0, 1.0)]
INTERVAL = 1e-3
law = functools.cache(law_of_runs)


def losses_of(p, q):
    """The privacy losses of two laws over the same outcomes, in both directions."""
    p, q = (dict(enumerate(np.log(x).tolist())) for x in (p, q))
    make = distributions.from_two_probability_mass_functions
    remove = make(q, p, value_discretization_interval=INTERVAL)
    add = make(p, q, value_discretization_interval=INTERVAL)
    return distributions.PrivacyLossDistribution(remove._pmf_remove, add._pmf_remove)


def bound(pld, epsilons, remove=True):
    pmf = pld._pmf_remove if remove else pld._pmf_add
    return np.array([pmf.get_delta_for_epsilon(e) for e in epsilons])


@pytest.mark.parametrize("mean, shape", RUNS)
def test_no_ranking_of_the_outcomes_costs_more_than_the_bound(mean, shape):
    rng = np.random.default_rng(1)
    epsilons = np.array([-0.5, 0.0, 0.2, 1.0, 2.0, 4.0])
    runs = law(mean, shape)
    for sharpness in (0.3, 1.0, 3.0):
        p, q = scipy.special.softmax(sharpness * rng.normal(size=(2, 5)), axis=1)
        pld = selected(losses_of(p, q), mean, shape, INTERVAL)
        limit, limit_back = bound(pld, epsilons), bound(pld, epsilons, remove=False)
        orders = np.array(list(itertools.permutations(range(5))))
        a, b = (released(x[orders], runs) for x in (p, q))
        assert (np.array([delta(e, a, b).max() for e in epsilons]) <= limit + 1e-9).all()
        assert (np.array([delta(e, b, a).max() for e in epsilons]) <= limit_back + 1e-9).all()


def test_no_run_at_all_is_an_outcome_that_is_charged():
    """It adds to delta below epsilon = 0 only, on which compositions depend."""
    p, q = np.array([0.3672, 0.6328]), np.array([0.9998, 0.0002])
    pld, runs = selected(losses_of(p, q), 0.85, POISSON, INTERVAL), law(0.85, POISSON)
    epsilons = np.array([-2.0, -1.0, -0.5])
    for order in ([0, 1], [1, 0]):
        a, b = (released(x[order], runs) for x in (p, q))
        truth = np.array([delta(e, a, b) for e in epsilons])
        assert (truth <= bound(pld, epsilons) + 1e-9).all()


@pytest.mark.parametrize("noise", [1.0, 4.0])
@pytest.mark.parametrize("mean, shape", RUNS)
def test_the_worst_ranking_of_a_gaussian_almost_reaches_the_bound(mean, shape, noise):
    """Two Gaussians, by integration over their outputs, with rankings made to cost much."""
    edges = np.linspace(-7 * noise, 1 + 7 * noise, 2001)
    p, q = (np.diff(scipy.stats.norm.cdf(edges, mean, noise)) for mean in (1, 0))
    loss = (edges[1:] + edges[:-1] - 1) / (2 * noise**2)
    at = epsilon_of(noise, mean, shape)
    highs, lows = np.linspace(0.2, 1, 9) * at, np.linspace(-1, 0.2, 13) * at
    orders = np.array([worst_order(loss, *cuts) for cuts in itertools.product(highs, lows)])
    a, b = (released(x[orders], law(mean, shape)) for x in (p, q))
    worst = delta(at, a, b).max()
    assert worst <= 1e-5
    # No smaller epsilon is true, by more than a few percent.
    assert delta(0.93 * at, a, b).max() > 1e-5


def test_simulated_searches_cost_no_more_than_the_bound():
    """With a generator of random numbers in place of the law of the best."""
    rng, count, noise = np.random.default_rng(2), 400_000, 1.0
    at = epsilon_of(noise, 3.0, 1.0, 0.05)
    runs = rng.geometric(1 / 3.0, size=count)
    best = [
        np.maximum.reduceat(
            rng.normal(mean, noise, size=runs.sum()), np.append(0, np.cumsum(runs)[:-1])
        )
        for mean in (1.0, 0.0)
    ]
    for cut in np.linspace(0, 5, 11):
        p, q = ((x > cut).mean() for x in best)
        assert p <= math.exp(at) * q + 0.05 + 4 * math.sqrt(p / count) + 1e-3


def epsilon_of(noise, mean, shape, at_delta=1e-5, relation="ADD_OR_REMOVE_ONE"):
    event = private_selection_event(gaussian_event(noise), mean, shape=shape)
    return epsilon(event, delta=at_delta, neighboring_relation=relation)


@pytest.mark.parametrize("mean, shape", RUNS)
@pytest.mark.parametrize("event", [gaussian_event(2.0), dpsgd_event(1.0, 30, sampling_prob=0.05)])
def test_the_search_costs_more_than_one_run_and_no_more_than_renyi_says(mean, shape, event):
    search = private_selection_event(event, mean, shape=shape)
    for at in (1e-3, 1e-6):
        settings = {"delta": at, "neighboring_relation": "ADD_OR_REMOVE_ONE"}
        cost = epsilon(search, **settings)
        assert cost > epsilon(event, **settings)
        assert cost <= epsilon(search, accountant_fn=RdpAccountant, **settings)


@pytest.mark.parametrize("relation", ["ADD_OR_REMOVE_ONE", "REPLACE_ONE", "REPLACE_SPECIAL"])
def test_a_search_composes_with_other_events(relation):
    search = private_selection_event(gaussian_event(3.0), 5.0, shape=1.0)
    both = dp_accounting.ComposedDpEvent([search, gaussian_event(3.0), zcdp_event(9.0, 1)])
    settings = {"delta": 1e-5, "neighboring_relation": relation}
    alone = epsilon(search, **settings)
    assert alone < epsilon(both, **settings)
    twice = dp_accounting.SelfComposedDpEvent(search, 2)
    assert alone < epsilon(twice, **settings) <= 2 * epsilon(search, **settings | {"delta": 5e-6})


def test_replacing_a_record_doubles_the_sensitivity():
    """Under both accountants, as for the event of one run."""
    for accountant in (None, RdpAccountant):
        settings = {"delta": 1e-5, "accountant_fn": accountant}
        half = private_selection_event(gaussian_event(2.0), 5.0, shape=1.0)
        full = private_selection_event(gaussian_event(4.0), 5.0, shape=1.0)
        replaced = epsilon(full, neighboring_relation="REPLACE_ONE", **settings)
        added = epsilon(half, neighboring_relation="ADD_OR_REMOVE_ONE", **settings)
        assert replaced == pytest.approx(added, rel=2e-3)


def test_zcdp_is_bounded_by_renyi():
    search = private_selection_event(zcdp_event(3.0, 2), 5.0, shape=0.0)
    cost = epsilon(search, delta=1e-5, neighboring_relation="ADD_OR_REMOVE_ONE")
    theirs = RdpAccountant().compose(search).get_epsilon(1e-5)
    assert cost == theirs


def test_a_search_without_noise_is_not_private():
    for event in (gaussian_event(0.0), dp_accounting.NonPrivateDpEvent()):
        search = private_selection_event(event, 5.0, shape=1.0)
        assert math.isinf(epsilon(search, delta=1e-5, neighboring_relation="ADD_OR_REMOVE_ONE"))


@pytest.mark.parametrize("mean, shape", [r for r in RUNS if not math.isinf(r[1])])
def test_the_halting_probability_gives_the_mean(mean, shape):
    gamma = halting_probability(mean, shape)
    series = law_of_runs(mean, shape)
    assert series.sum() == pytest.approx(1, rel=1e-9)
    ratio = series[2] / series[1]
    assert ratio == pytest.approx((1 - gamma) * (1 + shape) / 2, rel=1e-6)


def test_events_that_are_sampled_are_refused():
    with pytest.raises(FixArgumentsError, match="no bound is proven"):
        private_selection_event(
            random_allocation_event(1.0, 10, total_participations=2), 5.0, shape=1.0
        )


@pytest.mark.parametrize("mean, shape", [(1, 1.0), (0.5, 1.0), (math.inf, 1.0), (True, 1.0)])
def test_one_run_is_no_selection(mean, shape):
    with pytest.raises(FixArgumentsError, match="pass a number above 1"):
        private_selection_event(gaussian_event(1.0), mean, shape=shape)


@pytest.mark.parametrize("shape", [-0.5, math.nan, None])
def test_other_distributions_are_refused(shape):
    with pytest.raises(FixArgumentsError, match="pass 0 "):
        private_selection_event(gaussian_event(1.0), 5, shape=shape)


def test_a_number_that_is_always_one_costs_what_one_run_costs():
    event = RepeatAndSelectDpEvent(gaussian_event(2.0), 1.0, 1.0)
    settings = {"delta": 1e-5, "neighboring_relation": "ADD_OR_REMOVE_ONE"}
    assert epsilon(event, **settings) == pytest.approx(epsilon(gaussian_event(2.0), **settings))


@pytest.mark.parametrize("mean, shape", [(1e4, POISSON), (1e300, 1.0), (1e4, 300.0), (10.0, 1e13)])
def test_numbers_beyond_all_measure_are_not_private(mean, shape):
    event = RepeatAndSelectDpEvent(gaussian_event(2.0), mean, shape)
    assert math.isinf(epsilon(event, delta=1e-5, neighboring_relation="ADD_OR_REMOVE_ONE"))
