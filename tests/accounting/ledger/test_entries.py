"""Entries: checked when they are created and when they are read, and unchanged by a round trip."""

import pytest

from bevel.accounting.ledger.entries import Charge, Release, entry_from_json
from bevel.errors import FixArgumentsError, RestoreLedgerError

EVENT = {"kind": "GaussianDpEvent", "noise_multiplier": 1.0}
RUN = {"run": "run", "plan": "plan", "key": "a" * 64, "attempt": 0}


def charge(**changes):
    return Charge(**{**RUN, "first": 0, "stop": 1, "event": EVENT, **changes})


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"run": ""}, "run=''"),
        ({"plan": None}, "plan=None"),
        ({"first": 3, "stop": 3}, "the range is empty"),
        ({"first": 3, "stop": 1}, "the range is empty"),
        ({"first": -1}, "first=-1"),
        ({"stop": 1.0}, "stop=1.0"),
        ({"attempt": True}, "attempt=True"),
        ({"released": 0}, "released=0 of a charge for steps 0 to 1"),
        ({"released": 2}, "released=2 of a charge for steps 0 to 1"),
        ({"released": 1.0}, r"released=1\.0: pass an integer"),
    ],
)
def test_charges_are_checked(changes, message):
    with pytest.raises(FixArgumentsError, match=message):
        charge(**changes)


@pytest.mark.parametrize(
    "changes, message",
    [({"run": ""}, "run=''"), ({"stop": -1}, "stop=-1"), ({"attempt": None}, "attempt=None")],
)
def test_releases_are_checked(changes, message):
    with pytest.raises(FixArgumentsError, match=message):
        Release(**{**RUN, "stop": 1, **changes})


@pytest.mark.parametrize("key", ["my secret", b"a" * 64, None, "A" * 64])
@pytest.mark.parametrize("kind", [charge, lambda key: Release(**{**RUN, "stop": 1, "key": key})])
def test_a_key_instead_of_its_commitment_is_refused_and_not_shown(key, kind):
    with pytest.raises(FixArgumentsError, match="never the key itself") as error:
        kind(key=key)
    assert "secret" not in str(error.value)


def test_a_charge_releases_all_its_steps_by_default():
    assert charge(stop=4).released == 4
    assert charge(stop=4, released=1).released == 1


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    "entry", [charge(first=3, stop=5, attempt=1, released=4), Release(**RUN, stop=7)]
)
def test_entries_round_trip(entry, version):
    assert entry_from_json(entry.entry(), version, "the file") == entry


def test_charges_of_version_1_count_as_released():
    entry = charge(first=3, stop=5).entry()
    del entry["released"], entry["content"]
    assert entry_from_json(entry, 1, "the file") == charge(first=3, stop=5, released=5)
    with pytest.raises(RestoreLedgerError, match="cannot read"):
        entry_from_json(entry, 2, "the file")


@pytest.mark.parametrize("version", [1, 2])
def test_unknown_entries_are_refused(version):
    whole, mark = charge().entry(), Release(**RUN, stop=1).entry()
    short = {name: value for name, value in whole.items() if name != "event"}
    strange = [{}, whole | {"kind": "refund"}, whole | {"more": 1}, short, mark | {"more": 1}]
    for entry in [*strange, whole | {"kind": ["charge"]}, mark | {"kind": "charge"}]:
        with pytest.raises(RestoreLedgerError, match="cannot read"):
            entry_from_json(entry, version, "the file")


@pytest.mark.parametrize(
    "changes",
    [
        {"released": None},
        {"event": {"kind": "x"}},
        {"event": 3},
        {"event": {"kind": "GaussianDpEvent", "noise_multiplier": -1.0}},
    ],
)
def test_entries_in_a_file_are_checked_like_charges(changes):
    with pytest.raises(FixArgumentsError):
        entry_from_json(charge().entry() | changes, 2, "the file")
