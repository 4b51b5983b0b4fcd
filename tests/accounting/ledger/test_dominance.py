"""Dominance: a dominating event costs at least as much, and restating never costs less."""

import collections

import pytest
from hypothesis import given, settings
from ledger_events import (
    ALL,
    NOTHING,
    allocation,
    bins,
    composed,
    event,
    fixed,
    gaussian,
    often,
    poisson,
    renyi_2,
    search,
    total,
    truncated,
    zcdp,
)

from bevel.accounting import epsilon
from bevel.accounting.ledger import event_from_json
from bevel.accounting.ledger.dominance import MONOTONE, dominates, restated
from bevel.accounting.ledger.event_json import KINDS
from bevel.accounting.ledger.hash_chain import canonical
from bevel.accounting.ledger.totals import event_counts

TRIANGLE = [[1.0, 0.0], [1.0, 1.0]]
WITH = "SampledWithReplacementDpEvent"
# Pairs in which the first event costs more.
ABOVE = [
    (gaussian(1.0), gaussian(1.5)),
    (gaussian(1.0), NOTHING),
    (ALL, gaussian(0.0)),
    (ALL, bins(1.0, 4)),
    (zcdp(0.5), zcdp(0.4)),
    (zcdp(0.5, 0.1), zcdp(0.5)),
    (poisson(0.1, 0.9), poisson(0.1)),
    (poisson(0.2), poisson(0.1)),
    (poisson(0.2, 0.9), poisson(0.1)),
    (fixed(50, 5, 0.9), fixed(50, 5)),
    (fixed(50, 5, 0.9, WITH), fixed(50, 5, 1.0, WITH)),
    (truncated(12, 0.2, 4, 0.9), truncated(12, 0.2, 4)),
    (allocation(0.9, 6, 2), allocation(1.0, 6, 2)),
    (bins(0.9, 4), bins(1.0, 4)),
    (bins(1.0, 5), bins(1.0, 4)),
    (bins(1.0, 4, strategy=(1.0, 0.5)), bins(1.0, 2, strategy=(1.0, 0.5))),
    (bins(0.9, 2, strategy=TRIANGLE), bins(1.0, 2, strategy=TRIANGLE)),
]
# Pairs without a proven rule in either direction.
APART = [
    (gaussian(1.0), poisson(0.1)),
    (zcdp(0.5), gaussian(1.0)),
    (zcdp(0.5), zcdp(0.4, 0.1)),
    (poisson(0.1, 0.9), poisson(0.2)),
    (fixed(50, 5), fixed(50, 6)),
    (fixed(50, 5), fixed(49, 5)),
    (fixed(50, 5), fixed(50, 5, kind=WITH)),
    (truncated(50, 0.1, 9), truncated(50, 0.2, 9)),
    (truncated(50, 0.1, 9), truncated(50, 0.1, 8)),
    (truncated(50, 0.1, 9), truncated(51, 0.1, 9)),
    (allocation(1.0, 6), allocation(1.0, 7)),
    (allocation(1.0, 6, 1), allocation(1.0, 6, 2)),
    (bins(1.0, 4, 2), bins(1.0, 4, 3)),
    (bins(1.0, 4, strategy=(1.0, 0.5)), bins(1.0, 4, strategy=(1.0, 0.4))),
    (bins(1.0, 4, strategy=(1.0, 0.5)), bins(1.0, 1, strategy=(1.0, 0.5))),
    (bins(0.9, 4), bins(1.0, 5)),
    (search(gaussian(0.9)), search(gaussian(1.0))),
    (search(gaussian(1.0), 11.0), search(gaussian(1.0))),
    (search(gaussian(1.0), shape=2.0), search(gaussian(1.0))),
    (search(gaussian(1.0)), gaussian(1.0)),
]


@pytest.mark.parametrize("more, less", ABOVE)
def test_a_more_expensive_event_dominates_and_is_not_dominated(more, less):
    assert dominates(more, less) and dominates(more, more)
    assert not dominates(less, more)


@pytest.mark.parametrize("one, other", APART)
def test_events_without_a_rule_do_not_dominate(one, other):
    assert not dominates(one, other) and not dominates(other, one)


def test_every_kind_with_a_rule_is_tested():
    assert {more["kind"] for more, _ in ABOVE} >= set(MONOTONE)
    inside_or_apart = {"NoOpDpEvent", "NonPrivateDpEvent", "SelfComposedDpEvent", "ComposedDpEvent"}
    inside_or_apart |= {"RepeatAndSelectDpEvent"}
    assert set(MONOTONE) | inside_or_apart == set(KINDS)


RELATIONS = {
    "GaussianDpEvent": ["ADD_OR_REMOVE_ONE", "REPLACE_ONE", "REPLACE_SPECIAL"],
    "PoissonSampledDpEvent": ["ADD_OR_REMOVE_ONE", "REPLACE_ONE", "REPLACE_SPECIAL"],
    "ZCDpEvent": ["ADD_OR_REMOVE_ONE"],
    "SampledWithoutReplacementDpEvent": ["REPLACE_ONE"],
    "TruncatedSubsampledGaussianDpEvent": ["REPLACE_SPECIAL"],
}


@pytest.mark.parametrize(
    "more, less, relation",
    [
        (more, less, relation)
        for more, less in ABOVE
        for relation in RELATIONS.get(less["kind"], [])
        if more["kind"] == less["kind"]
    ],
)
def test_accountants_agree(more, less, relation):
    def cost(event):
        whole = event_from_json(often(event, 3))
        return epsilon(whole, delta=1e-4, neighboring_relation=relation)

    assert cost(more) >= cost(less)


CLOSED_FORM = [
    (more, less)
    for more, less in ABOVE
    if more != ALL and not more["kind"].startswith(("Sampled", "Truncated"))
]


@pytest.mark.parametrize("more, less", CLOSED_FORM)
def test_divergences_agree(more, less):
    assert renyi_2(more) > renyi_2(less)


def test_the_steps_of_a_random_allocation_are_not_monotone():
    assert renyi_2(allocation(1.0, 7)) < renyi_2(allocation(1.0, 6))


def counted(old, new):
    after = restated(event_counts(old), event_counts(new))
    return collections.Counter({text: count for text, count in after.items() if count})


@pytest.mark.parametrize(
    "old, new",
    [
        *[(less, more) for more, less in ABOVE if more != ALL],
        (gaussian(1.0), gaussian(1.0)),
        (ALL, ALL),
        (often(poisson(0.1), 3), often(poisson(0.1), 4)),
        (often(poisson(0.1), 3), often(poisson(0.1, 0.9), 3)),
        (often(gaussian(2.0), 3), composed(often(gaussian(1.0), 2), gaussian(1.5))),
        (composed(gaussian(1.0), gaussian(2.0)), composed(gaussian(1.5), gaussian(0.5))),
        (composed(gaussian(1.0), zcdp(0.1)), composed(zcdp(0.2), poisson(0.1), gaussian(1.0))),
        (composed(gaussian(1.0), NOTHING), gaussian(1.0)),
        (often(gaussian(1.0), 0), gaussian(9.0)),
    ],
)
def test_a_dominating_event_replaces_the_other(old, new):
    assert counted(old, new) == event_counts(new)


@pytest.mark.parametrize(
    "old, new",
    [
        *[(more, less) for more, less in ABOVE],
        *APART,
        (often(poisson(0.1), 4), often(poisson(0.1), 3)),
        (often(gaussian(2.0), 3), often(gaussian(1.0), 2)),
        (composed(gaussian(1.0), gaussian(1.0)), composed(gaussian(0.5), gaussian(2.0))),
        (often(gaussian(2.0), 5), NOTHING),
        (composed(gaussian(1.0), zcdp(0.1)), often(gaussian(0.1), 9)),
    ],
)
def test_an_event_that_does_not_dominate_is_counted_in_addition(old, new):
    assert counted(old, new) == event_counts(old) + event_counts(new)


def test_an_event_cheaper_only_by_rounding_leaves_the_old_one():
    old, new = poisson(0.1, 1.5), poisson(0.1, 1.5 * (1 + 1e-12))
    assert counted(old, new) == event_counts(old)
    assert counted(often(old, 3), often(new, 5)) == event_counts(
        composed(often(old, 3), often(new, 2))
    )
    far = poisson(0.1, 1.5 * (1 + 1e-6))
    assert counted(old, far) == event_counts(composed(old, far))


def test_rounding_does_not_accumulate():
    pending = event_counts(gaussian(1.0))
    for number in range(100):
        pending = restated(pending, event_counts(gaussian(1.0 + number * 5e-10)))
    assert pending[canonical(gaussian(1.0)).decode()] == 1


@settings(max_examples=300, deadline=None)
@given(event, event)
def test_restating_costs_at_least_the_old_and_the_new_event(old, new):
    before, stated = event_counts(old), event_counts(new)
    after = restated(before, stated)
    slack = 1 - 1e-12  # for the rounding of the sums in this test
    assert total(after) >= slack * total(before)
    assert total(after) >= slack * total(stated)
    assert total(after) <= (1 + 1e-9) * (total(before) + total(stated))
