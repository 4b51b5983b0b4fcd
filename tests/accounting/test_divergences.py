"""Cached divergences give the epsilon of RdpAccountant, without computing them again."""

import dp_accounting
import pytest
from dp_accounting import ComposedDpEvent, GaussianDpEvent, SelfComposedDpEvent
from dp_accounting import NeighboringRelation as Relation
from dp_accounting.rdp import RdpAccountant

from bevel.accounting import divergences, epsilon
from bevel.accounting.divergences import CachedRdpAccountant

FIXED = dp_accounting.SampledWithoutReplacementDpEvent(1000, 20, GaussianDpEvent(2.0))
MIXED = ComposedDpEvent([SelfComposedDpEvent(FIXED, 30), GaussianDpEvent(9.0), FIXED])


def test_epsilon_is_that_of_the_library_to_the_last_bit():
    for event in (FIXED, MIXED, SelfComposedDpEvent(MIXED, 3), dp_accounting.ZCDpEvent(0.1)):
        ours = CachedRdpAccountant(Relation.REPLACE_ONE).compose(event).compose(FIXED)
        theirs = RdpAccountant(neighboring_relation=Relation.REPLACE_ONE).compose(event)
        assert ours.get_epsilon(1e-5) == theirs.compose(FIXED).get_epsilon(1e-5)


def test_more_of_an_event_takes_no_new_divergences():
    divergences.single_divergences.cache_clear()
    found = [
        epsilon(SelfComposedDpEvent(FIXED, n), delta=1e-5, neighboring_relation="REPLACE_ONE")
        for n in (10, 20, 40)
    ]
    assert found == sorted(found) and divergences.single_divergences.cache_info().misses == 1


def test_the_kept_divergences_are_not_changed():
    first = CachedRdpAccountant(Relation.REPLACE_ONE).compose(FIXED).get_epsilon(1e-5)
    CachedRdpAccountant(Relation.REPLACE_ONE).compose(MIXED)
    again = CachedRdpAccountant(Relation.REPLACE_ONE).compose(FIXED).get_epsilon(1e-5)
    assert again == first


def test_an_event_that_is_not_supported_is_still_refused():
    accountant = CachedRdpAccountant(Relation.ADD_OR_REMOVE_ONE)
    with pytest.raises(dp_accounting.UnsupportedEventError):
        accountant.compose(FIXED)
