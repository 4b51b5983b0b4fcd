"""Cached loss distributions give the epsilon of PLDAccountant, without making them again."""

import dp_accounting
import pytest
from dp_accounting import ComposedDpEvent, GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting import NeighboringRelation as Relation
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld import privacy_loss_distribution as distributions

from bevel.accounting import epsilon, loss_distributions
from bevel.accounting.accountants import interval_for
from bevel.accounting.loss_distributions import CachedPLDAccountant, event_counts

DELTA = 1e-5


def sampled(noise, prob=0.05, times=1):
    event = PoissonSampledDpEvent(prob, GaussianDpEvent(noise))
    return dp_accounting.SelfComposedDpEvent(event, times)


MIXED = ComposedDpEvent(
    [
        sampled(1.0, times=40),
        GaussianDpEvent(6.0),
        dp_accounting.SelfComposedDpEvent(GaussianDpEvent(9.0), 3),
        sampled(2.0),
        sampled(1.0, times=2),
        dp_accounting.NoOpDpEvent(),
    ]
)


@pytest.fixture(name="made")
def fixture_made(monkeypatch):
    """Records every loss distribution that is made."""
    calls = []
    real = distributions.from_gaussian_mechanism

    def counted(*args, **kwargs):
        calls.append(kwargs)
        return real(*args, **kwargs)

    monkeypatch.setattr(distributions, "from_gaussian_mechanism", counted)
    loss_distributions.of_single_event.cache_clear()
    return calls


@pytest.mark.parametrize("relation", [Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE])
def test_epsilon_is_that_of_the_library(relation):
    ours = CachedPLDAccountant(relation, 1e-3).compose(MIXED).compose(sampled(3.0))
    theirs = PLDAccountant(relation, 1e-3).compose(MIXED).compose(sampled(3.0))
    assert ours.get_epsilon(DELTA) == pytest.approx(theirs.get_epsilon(DELTA), abs=1e-5)
    assert ours.get_delta(1.0) == pytest.approx(theirs.get_delta(1.0), rel=1e-4)


def test_gaussians_are_one_event():
    counts = event_counts(ComposedDpEvent([GaussianDpEvent(2.0 + k) for k in range(50)]))
    (only,) = counts
    precision = sum((2.0 + k) ** -2 for k in range(50))
    assert only.noise_multiplier == pytest.approx(precision**-0.5)


def test_an_event_without_noise_has_no_epsilon():
    for event in (GaussianDpEvent(0.0), sampled(0.0), dp_accounting.NonPrivateDpEvent()):
        accountant = CachedPLDAccountant(Relation.ADD_OR_REMOVE_ONE, 1e-3)
        joint = ComposedDpEvent([sampled(1.0), event])
        assert accountant.compose(joint).get_epsilon(DELTA) == float("inf")


def test_more_of_the_same_event_makes_no_distribution(made):
    for times in (1, 7, 100):
        epsilon(sampled(1.3, times=times), delta=DELTA, neighboring_relation="ADD_OR_REMOVE_ONE")
    assert len(made) == 1


def test_epsilon_of_many_different_events_is_rounded_up_and_not_far(made):
    events = ComposedDpEvent([sampled(6 + k / 8, times=1 + k % 3) for k in range(64)])
    relation = Relation.ADD_OR_REMOVE_ONE
    assert interval_for(events, relation) == pytest.approx(4e-4)
    coarse = epsilon(events, delta=DELTA, neighboring_relation=relation)
    assert {call["value_discretization_interval"] for call in made} == {
        interval_for(events, relation)
    }
    fine = CachedPLDAccountant(relation, 1e-4).compose(events).get_epsilon(DELTA)
    assert fine <= coarse <= fine + 1e-3
