"""Accountants: what the noise is relative to for each, and which one is the default."""

import functools

import dp_accounting
import pytest
from compare import FULL
from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from bevel.accounting import accountants, dpsgd_event, epsilon, fixed_dpsgd_event, gaussian_event
from bevel.accounting.events import truncated_dpsgd_event, zcdp_event
from bevel.errors import FixArgumentsError

ADD, ONE, SPECIAL = (
    NeighboringRelation.ADD_OR_REMOVE_ONE,
    NeighboringRelation.REPLACE_ONE,
    NeighboringRelation.REPLACE_SPECIAL,
)
DELTA = 1e-5
STDDEV, CLIP = 3.0, 2.0


def closed_form(noise):
    return dp_accounting.get_epsilon_gaussian(noise, DELTA)


@pytest.mark.parametrize("relation, sensitivity", [(ADD, CLIP), (SPECIAL, CLIP), (ONE, 2 * CLIP)])
@pytest.mark.parametrize("steps", [1, 4])
def test_the_unsampled_gaussian_has_its_closed_form_under_every_relation(
    relation, sensitivity, steps
):
    event = gaussian_event(STDDEV / CLIP, steps)
    truth = closed_form(STDDEV / sensitivity / steps**0.5)
    for accountant in (None, PLDAccountant):
        found = epsilon(event, delta=DELTA, neighboring_relation=relation, accountant_fn=accountant)
        assert found == pytest.approx(truth, abs=1e-3) and found >= truth - 1e-9
    # RDP is a looser bound, computed from the closed form of the Rényi divergence.
    found = epsilon(event, delta=DELTA, neighboring_relation=relation, accountant_fn=RdpAccountant)
    alone = RdpAccountant().compose(dp_accounting.GaussianDpEvent(STDDEV / sensitivity), steps)
    assert found == pytest.approx(alone.get_epsilon(DELTA), rel=1e-12)
    assert truth <= found <= 1.15 * truth


def test_the_accountants_disagree_without_conversion():
    # Why events are converted: under replace-one, PLD doubles the sensitivity and RDP does not.
    event = gaussian_event(STDDEV / CLIP)
    pld = PLDAccountant(ONE).compose(event).get_epsilon(DELTA)
    rdp = RdpAccountant(neighboring_relation=ONE).compose(event).get_epsilon(DELTA)
    assert pld > 1.5 * rdp


@pytest.mark.parametrize("relation", [ADD, SPECIAL, ONE])
def test_sampling_does_not_amplify_zcdp(relation):
    plain = epsilon(zcdp_event(2.0, 3), delta=DELTA, neighboring_relation=relation)
    sampled = dpsgd_event(2.0, 3, sampling_prob=0.1, use_zcdp=True)
    both = dp_accounting.ComposedDpEvent([sampled])
    for event in (sampled, both):
        found = epsilon(event, delta=DELTA, neighboring_relation=relation)
        assert found == pytest.approx(plain)
    nobody = dp_accounting.PoissonSampledDpEvent(0.0, dp_accounting.ZCDpEvent(1.0))
    assert epsilon(nobody, delta=DELTA, neighboring_relation=relation) == 0
    fixed = fixed_dpsgd_event(2.0, 3, dataset_size=9, batch_size=3, use_zcdp=True)
    if relation is ADD:  # a record more moves the others into other batches
        with pytest.raises(FixArgumentsError, match="no accountant has a bound"):
            epsilon(fixed, delta=DELTA, neighboring_relation=relation)
    else:
        found = epsilon(fixed, delta=DELTA, neighboring_relation=relation)
        assert found == pytest.approx(plain)


@pytest.mark.parametrize("relation, factor", [(ADD, 1), (SPECIAL, 1), (ONE, 4)])
def test_zcdp_grows_with_the_square_of_the_sensitivity(relation, factor):
    found = epsilon(zcdp_event(2.0, 3), delta=DELTA, neighboring_relation=relation)
    alone = RdpAccountant().compose(dp_accounting.ZCDpEvent(factor * 3 / 8))
    assert found == pytest.approx(alone.get_epsilon(DELTA))
    gaussian = epsilon(
        gaussian_event(2.0, 3),
        delta=DELTA,
        neighboring_relation=relation,
        accountant_fn=RdpAccountant,
    )
    assert found == pytest.approx(gaussian)


def test_fixed_size_batches_are_accounted_with_twice_the_bound():
    event = fixed_dpsgd_event(4.0, 20, dataset_size=100, batch_size=10)
    found = epsilon(event, delta=DELTA, neighboring_relation=ONE)
    half = fixed_dpsgd_event(2.0, 20, dataset_size=100, batch_size=10)
    alone = RdpAccountant(neighboring_relation=ONE).compose(half)
    assert found == pytest.approx(alone.get_epsilon(DELTA))


EVENTS = st.one_of(
    st.builds(
        lambda noise, steps, p: dpsgd_event(noise, steps, sampling_prob=p),
        st.floats(0.8, 6),
        st.integers(1, 50),
        st.floats(0.01, 1),
    ),
    st.builds(gaussian_event, st.floats(0.8, 6), st.integers(1, 50)),
    st.builds(
        lambda noise, steps, p: truncated_dpsgd_event(
            noise, steps, sampling_prob=p, num_examples=50, truncated_batch_size=12
        ),
        st.floats(1.5, 6),
        st.integers(1, 20),
        st.floats(0.01, 0.5),
    ),
)


@settings(max_examples=20 if FULL else 5)
@given(EVENTS)
def test_replace_one_never_costs_less_than_add_or_remove(event):
    coarse = functools.partial(PLDAccountant, value_discretization_interval=1e-3)
    cost = {
        relation: epsilon(event, delta=DELTA, neighboring_relation=relation, accountant_fn=coarse)
        for relation in NeighboringRelation
    }
    assert cost[ONE] >= cost[ADD] - 1e-9
    assert cost[ADD] == pytest.approx(cost[SPECIAL])


class Mine(dp_accounting.PrivacyAccountant):
    def __init__(self, neighboring_relation):
        super().__init__(neighboring_relation)

    def _maybe_compose(self, event, count, do_compose):
        return None

    def get_epsilon(self, target_delta):
        return 7.0


def test_an_accountant_with_an_unknown_convention_is_refused():
    event = gaussian_event(1.0)
    assert epsilon(event, delta=DELTA, neighboring_relation=ADD, accountant_fn=Mine) == 7.0
    with pytest.raises(FixArgumentsError, match="does not know whether"):
        epsilon(event, delta=DELTA, neighboring_relation=ONE, accountant_fn=Mine)


@pytest.mark.parametrize(
    "event, relation, accountant",
    [
        (dpsgd_event(1.0, 3, sampling_prob=0.1), ONE, RdpAccountant),
        (fixed_dpsgd_event(1.0, 3, dataset_size=9, batch_size=3), ONE, PLDAccountant),
        (fixed_dpsgd_event(1.0, 3, dataset_size=9, batch_size=3), ADD, RdpAccountant),
        (zcdp_event(1.0, 3), ADD, PLDAccountant),
        (
            truncated_dpsgd_event(
                1.0, 3, sampling_prob=0.1, num_examples=9, truncated_batch_size=2
            ),
            SPECIAL,
            RdpAccountant,
        ),
    ],
)
def test_an_event_the_accountant_cannot_bound_is_an_error(event, relation, accountant):
    with pytest.raises(FixArgumentsError, match="has no bound for"):
        epsilon(event, delta=DELTA, neighboring_relation=relation, accountant_fn=accountant)


@pytest.mark.parametrize("relation", [ADD, SPECIAL])
def test_an_event_no_accountant_can_bound_is_an_error(relation):
    for replace in (False, True):
        event = fixed_dpsgd_event(1.0, 3, dataset_size=9, batch_size=3, replace=replace)
        with pytest.raises(FixArgumentsError, match="no accountant has a bound"):
            epsilon(event, delta=DELTA, neighboring_relation=relation)


def test_an_event_without_a_known_convention_is_refused_by_rdp():
    with pytest.raises(FixArgumentsError, match="does not know what its noise"):
        accountants.with_half_the_noise(dp_accounting.LaplaceDpEvent(1.0))
    with pytest.raises(FixArgumentsError, match="does not know what its noise"):
        accountants.with_half_the_noise(dp_accounting.ZCDpEvent(1.0, xi=0.5))


def test_compositions_are_halved_all_the_way_down():
    inner = dp_accounting.GaussianDpEvent(4.0)
    half = dp_accounting.GaussianDpEvent(2.0)
    event = dp_accounting.ComposedDpEvent(
        [inner, dp_accounting.SelfComposedDpEvent(inner, 3), dp_accounting.NoOpDpEvent()]
    )
    assert accountants.with_half_the_noise(event) == dp_accounting.ComposedDpEvent(
        [half, dp_accounting.SelfComposedDpEvent(half, 3), dp_accounting.NoOpDpEvent()]
    )
    # A list is not hashable, so the cache is bypassed, with the same result.
    cost = epsilon(event, delta=DELTA, neighboring_relation=ONE, accountant_fn=RdpAccountant)
    alone = RdpAccountant().compose(half, 4).get_epsilon(DELTA)
    assert cost == pytest.approx(alone)


def test_an_event_is_composed_once():
    event = gaussian_event(1.234, 5)
    first = accountants.composed_accountant(event, ADD)
    assert accountants.composed_accountant(gaussian_event(1.234, 5), ADD) is first
    assert accountants.composed_accountant(event, ONE) is not first


@pytest.mark.parametrize(
    "event",
    [
        gaussian_event(0.01),
        gaussian_event(1.0, 10**6),
        dpsgd_event(0.02, 1000, sampling_prob=0.3),
        dpsgd_event(0.5, 10**6, sampling_prob=0.5),
        dpsgd_event(0.05, 10, sampling_prob=1e-6),
    ],
)
def test_almost_no_noise_takes_no_longer(event):
    # At dp-accounting's default rounding these take minutes, or more memory than is available.
    assert accountants.interval_for(event, ADD) > 1e-4
    cost = epsilon(event, delta=DELTA, neighboring_relation=ADD)
    looser = epsilon(event, delta=DELTA, neighboring_relation=ADD, accountant_fn=RdpAccountant)
    assert 0 <= cost <= 1.05 * looser + 1


def test_usual_noise_has_the_default_rounding():
    assert accountants.interval_for(dpsgd_event(0.8, 5000, sampling_prob=0.01), ADD) == 1e-4


def test_events_that_differ_are_composed_once_for_several_queries():
    joint = [gaussian_event(3.0), dpsgd_event(2.0, 3, sampling_prob=0.1)]
    for events in (joint, tuple(joint)):
        event = dp_accounting.ComposedDpEvent(events)
        assert accountants.composed_accountant(event, ADD) is accountants.composed_accountant(
            event, ADD
        )
