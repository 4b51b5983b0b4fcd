"""What is stated at a release is never below what was spent, and at most 1e-4 above."""

import math

import dp_accounting
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

from bevel.accounting import balls_in_bins_event, epsilon_curve, spending
from bevel.accounting.epsilon_curve import TOLERANCE
from bevel.accounting.ledger import release_epsilon as module
from bevel.accounting.ledger.event_json import event_to_json
from bevel.accounting.ledger.release_epsilon import release_epsilon, stride_of
from bevel.accounting.ledger.spent import epsilon_of
from bevel.accounting.ledger.totals import event_counts

STEP = PoissonSampledDpEvent(0.02, GaussianDpEvent(1.2))
FIXED = dp_accounting.SampledWithoutReplacementDpEvent(1000, 20, GaussianDpEvent(2.0))
OTHER = SelfComposedDpEvent(PoissonSampledDpEvent(0.1, GaussianDpEvent(3.0)), 5)


def counts_of(*events):
    total = event_counts(event_to_json(dp_accounting.NoOpDpEvent()))
    total.clear()
    for event in events:
        total.update(event_counts(event_to_json(event)))
    return total


@pytest.mark.parametrize("others", [(), (OTHER,), (OTHER, GaussianDpEvent(20.0))])
@pytest.mark.parametrize(
    ("event", "relation"),
    [
        (STEP, "ADD_OR_REMOVE_ONE"),
        (GaussianDpEvent(30.0), "ADD_OR_REMOVE_ONE"),
        (GaussianDpEvent(30.0), "REPLACE_ONE"),
        (dp_accounting.ZCDpEvent(0.001), "ADD_OR_REMOVE_ONE"),
    ],
    ids=["poisson", "gaussian", "replace one", "zCDP"],
)
def test_it_is_never_below_what_was_spent_and_close_above(event, relation, others):
    if relation == "REPLACE_ONE":
        others = tuple(other for other in others if isinstance(other, GaussianDpEvent))
    for count in (3, 50):
        counts = counts_of(SelfComposedDpEvent(event, count), *others)
        exact = epsilon_of(counts, 1e-5, relation)
        stated = release_epsilon(counts, event, 20, 1e-5, relation)
        assert exact <= stated <= exact + TOLERANCE


@pytest.mark.parametrize("others", [(), (OTHER,)], ids=["alone", "with others"])
@pytest.mark.parametrize("event", [STEP, GaussianDpEvent(30.0)], ids=["poisson", "gaussian"])
def test_frequent_events_take_no_exact_epsilon(event, others, monkeypatch):
    monkeypatch.setattr(module, "epsilon", None)
    for count in (1, 7, 20):
        counts = counts_of(SelfComposedDpEvent(event, count), *others)
        assert release_epsilon(counts, event, 20, 1e-5, "ADD_OR_REMOVE_ONE")


def test_others_are_composed_once_while_gaussians_are_added():
    epsilon_curve.kept_steps.cache_clear()
    for noise in (9.0, 8.0, 7.0):
        counts = counts_of(GaussianDpEvent(noise), OTHER)
        stated = release_epsilon(counts, GaussianDpEvent(7.0), 1, 1e-5, "ADD_OR_REMOVE_ONE")
        exact = epsilon_of(counts, 1e-5, "ADD_OR_REMOVE_ONE")
        assert exact <= stated <= exact + TOLERANCE
    assert epsilon_curve.kept_steps.cache_info().misses == 1


@pytest.mark.parametrize("event", [STEP, GaussianDpEvent(30.0)], ids=["poisson", "gaussian"])
def test_charges_that_cannot_be_composed_have_one_exact_epsilon_for_all_releases(
    event, monkeypatch
):
    """Such as those that are bounded by sampling. The growing ones are bounded as usual."""
    bins, relation = balls_in_bins_event(8.0, 8, cycle_length=4), "ADD_OR_REMOVE_ONE"
    earlier = (bins, GaussianDpEvent(40.0))
    asked, real = [], module.epsilon
    monkeypatch.setattr(module, "epsilon", lambda e, **k: asked.append(e) or real(e, **k))
    for count in (3, 50):
        counts = counts_of(SelfComposedDpEvent(event, count), *earlier)
        exact = epsilon_of(counts, 1e-3, relation)
        stated = release_epsilon(counts, event, 20, 1e-3, relation)
        assert exact <= stated <= exact + TOLERANCE
    assert asked == [bins, bins]


def test_batches_of_a_fixed_size_have_their_exact_epsilon():
    counts = counts_of(SelfComposedDpEvent(FIXED, 30))
    stated = release_epsilon(counts, FIXED, 20, 1e-5, "REPLACE_ONE")
    assert stated == epsilon_of(counts, 1e-5, "REPLACE_ONE")


@pytest.mark.parametrize(
    "event",
    [
        dp_accounting.NonPrivateDpEvent(),
        GaussianDpEvent(0.0),
        PoissonSampledDpEvent(0.1, GaussianDpEvent(0.0)),
    ],
)
def test_without_noise_it_is_infinite(event):
    assert release_epsilon(counts_of(event), event, 1, 1e-5, "ADD_OR_REMOVE_ONE") == math.inf


def test_nothing_spent_costs_nothing():
    assert release_epsilon(counts_of(), None, 1, 1e-5, "ADD_OR_REMOVE_ONE") == 0


def test_an_event_that_is_sampled_is_not_bounded_here(monkeypatch):
    bins = balls_in_bins_event(2.0, 8, cycle_length=4)
    monkeypatch.setattr(module, "epsilon", lambda event, **kwargs: 1.25)
    assert release_epsilon(counts_of(bins), None, 1, 1e-5, "ADD_OR_REMOVE_ONE") == 1.25


def test_mixed_ledgers_are_cached():
    """An event that contains a list could not be."""
    spending._cached_epsilon.cache_clear()
    counts = counts_of(STEP, OTHER)
    assert epsilon_of(counts, 1e-5, "ADD_OR_REMOVE_ONE") == epsilon_of(
        counts, 1e-5, "ADD_OR_REMOVE_ONE"
    )
    assert spending._cached_epsilon.cache_info().hits == 1


def test_a_stride_is_about_the_square_root_of_the_releases_and_of_bounded_memory():
    assert stride_of(100, 10_000) == 1000 and stride_of(1, 1) == 1 and stride_of(7, 3) == 7
    assert stride_of(1, 10**6) == 32
