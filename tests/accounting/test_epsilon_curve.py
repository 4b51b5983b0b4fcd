"""Epsilon from a kept part of a composition and a few steps: never below that of the whole."""

import dp_accounting
import numpy as np
import pytest
from dp_accounting import ComposedDpEvent, GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting import NeighboringRelation as Relation
from dp_accounting import SelfComposedDpEvent as Repeated
from dp_accounting.pld import PLDAccountant

from bevel.accounting import epsilon_curve, loss_distributions
from bevel.accounting.epsilon_curve import TOLERANCE, composed_epsilon, gaussian_epsilon

ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE
INTERVAL = 1e-3
NOTHING = ComposedDpEvent(())
OTHERS = ComposedDpEvent((Repeated(PoissonSampledDpEvent(0.1, GaussianDpEvent(2.0)), 7),))
STEP = PoissonSampledDpEvent(0.05, GaussianDpEvent(1.0))


def exact(fixed, event, count, delta, relation, interval=INTERVAL):
    whole = ComposedDpEvent([fixed, Repeated(event, count)])
    return PLDAccountant(relation, interval).compose(whole).get_epsilon(delta)


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-7])
@pytest.mark.parametrize("fixed", [NOTHING, OTHERS], ids=["alone", "with others"])
@pytest.mark.parametrize(
    ("event", "relation"),
    [
        (STEP, ADD),
        (STEP, Relation.REPLACE_SPECIAL),
        (dp_accounting.TruncatedSubsampledGaussianDpEvent(1000, 0.05, 70, 1.0), ADD),
        (dp_accounting.LaplaceDpEvent(20.0), ADD),
    ],
    ids=["poisson", "special", "truncated", "laplace"],
)
def test_it_is_never_below_the_epsilon_of_the_whole_and_close_above(event, relation, fixed, delta):
    for count in (1, 19, 20, 47, 300):
        whole = exact(fixed, event, count, delta, relation)
        found = composed_epsilon(fixed, event, count, delta, relation, INTERVAL, 20)
        assert whole <= found <= whole + TOLERANCE, count


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("noise", [0.4, 1.0, 7.0, 60.0])
def test_one_gaussian_has_the_epsilon_of_its_distribution(noise, relation):
    for delta in (1e-3, 1e-5, 1e-7):
        found = gaussian_epsilon(noise, delta, relation, INTERVAL)
        accountant = PLDAccountant(relation, INTERVAL).compose(GaussianDpEvent(noise))
        whole = accountant.get_epsilon(delta)
        assert whole <= found <= whole + TOLERANCE


def test_a_large_enough_delta_needs_no_epsilon():
    assert composed_epsilon(NOTHING, STEP, 1, 0.5, ADD, INTERVAL, 4) == 0
    assert gaussian_epsilon(60.0, 0.5, ADD, INTERVAL) == 0


def test_the_result_does_not_depend_on_what_was_computed_before_or_on_the_stride():
    def at(count, stride=16):
        return composed_epsilon(OTHERS, STEP, count, 1e-5, ADD, INTERVAL, stride)

    forward = [at(count) for count in range(1, 40, 3)]
    epsilon_curve.kept_steps.cache_clear()
    epsilon_curve.added_steps.cache_clear()
    assert [at(count) for count in reversed(range(1, 40, 3))] == forward[::-1]
    assert [at(count, stride=7) for count in range(1, 40, 3)] == forward


def test_a_search_in_another_thread_does_not_change_the_result(monkeypatch):
    """Two runs in one process share the cached parts, and so where their searches begin."""
    arguments = (OTHERS, STEP, 40, 1e-5, ADD, INTERVAL, 16)
    alone = composed_epsilon(*arguments)
    part = epsilon_curve.kept_steps(OTHERS, STEP, 32, ADD, INTERVAL)[0]
    moved_meanwhile = property(lambda self: 7, lambda self, found: None)
    monkeypatch.setattr(type(part), "k", moved_meanwhile, raising=False)
    assert composed_epsilon(*arguments) == alone


def test_nothing_is_claimed_where_rounding_could_matter():
    assert composed_epsilon(NOTHING, STEP, 10, 1e-12, ADD, INTERVAL, 4) is None
    assert gaussian_epsilon(1.0, 1e-15, ADD, INTERVAL) is None
    assert gaussian_epsilon(1e-3, 1e-5, ADD, INTERVAL) is None
    no_noise = dp_accounting.NonPrivateDpEvent()
    assert composed_epsilon(no_noise, STEP, 10, 1e-5, ADD, INTERVAL, 4) is None


def test_many_releases_take_few_compositions(monkeypatch):
    """Square root of their number: most steps are composed anew only at multiples of the stride."""
    composed = []
    real = loss_distributions.CachedPLDAccountant._maybe_compose

    def counted(self, *args):
        composed.append(args)
        return real(self, *args)

    monkeypatch.setattr(loss_distributions.CachedPLDAccountant, "_maybe_compose", counted)
    epsilon_curve.kept_steps.cache_clear()
    epsilon_curve.added_steps.cache_clear()
    spent = [
        composed_epsilon(NOTHING, STEP, count, 1e-5, ADD, INTERVAL, 100)
        for count in range(10, 1001, 10)
    ]
    assert (np.diff(spent) > 0).all()
    assert epsilon_curve.added_steps.cache_info().misses == 10
    assert epsilon_curve.kept_steps.cache_info().misses == 11
