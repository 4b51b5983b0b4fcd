"""Headers of ledgers: checked, and the same for all runs of a ledger."""

import dp_accounting
import pytest

from bevel.accounting.ledger import Budget
from bevel.accounting.ledger.header import RELATIONS, LedgerHeader
from bevel.errors import FixArgumentsError, RestoreLedgerError


def test_relations_are_those_of_dp_accounting():
    assert set(RELATIONS) == set(dp_accounting.NeighboringRelation.__members__)


@pytest.mark.parametrize("budget", [None, Budget(3, 1e-5), Budget(0.1 + 0.2, 1e-300)])
def test_headers_round_trip(budget):
    terms = LedgerHeader("user", "REPLACE_ONE", budget)
    assert LedgerHeader.from_entry(terms.entry(), "the file") == terms


def test_other_files_are_refused():
    good = LedgerHeader("user", "REPLACE_ONE").entry()
    strange = [{"version": version} for version in (0, 4, "3", 3.0, True, None)]
    for change in [*strange, {"kind": "charge"}, {"more": 1}]:
        with pytest.raises(RestoreLedgerError, match="does not begin with the header of a ledger"):
            LedgerHeader.from_entry(good | change, "the file")
    with pytest.raises(RestoreLedgerError, match="kind None, version None"):
        LedgerHeader.from_entry({}, "the file")
    for change in [{"unit": "row"}, {"budget": {"epsilon": 1}}, {"budget": 3}, {"relation": []}]:
        with pytest.raises(RestoreLedgerError, match="has an invalid header"):
            LedgerHeader.from_entry(good | change, "the file")


def test_ledgers_of_version_1_are_read():
    old = LedgerHeader("user", "REPLACE_ONE", Budget(3, 1e-5), version=1)
    assert LedgerHeader.from_entry(old.entry(), "the file") == old
    old.check_same(LedgerHeader("user", "REPLACE_ONE", Budget(3, 1e-5)), "the file")


@pytest.mark.parametrize(
    "other, message",
    [
        (LedgerHeader("example", "REPLACE_ONE"), "costs per different units do not compose"),
        (LedgerHeader("user", "REPLACE_SPECIAL"), "costs under different relations do not compose"),
        (LedgerHeader("user", "REPLACE_ONE", Budget(1, 1e-5)), "a budget is fixed beforehand"),
    ],
)
def test_different_headers_do_not_compose(other, message):
    terms = LedgerHeader("user", "REPLACE_ONE")
    terms.check_same(terms, "the file")
    with pytest.raises(FixArgumentsError, match=message):
        terms.check_same(other, "the file")
    with pytest.raises(FixArgumentsError, match=message):
        other.check_same(terms, "the file")


@pytest.mark.parametrize("unit", ["examples", "", None])
def test_units_are_checked(unit):
    with pytest.raises(FixArgumentsError, match="write 'example' or 'user'"):
        LedgerHeader(unit, "REPLACE_ONE")


@pytest.mark.parametrize("relation", ["replace_one", None, 1])
def test_relations_are_checked(relation):
    with pytest.raises(FixArgumentsError, match="write 'ADD_OR_REMOVE_ONE', 'REPLACE_ONE' or"):
        LedgerHeader("user", relation)


@pytest.mark.parametrize(
    "epsilon, delta",
    [
        *[(epsilon, 1e-5) for epsilon in (0, -1, float("inf"), float("nan"), "3", True)],
        *[(1, delta) for delta in (0, 1, -0.1, None, float("nan"))],
    ],
)
def test_budgets_are_checked(epsilon, delta):
    with pytest.raises(FixArgumentsError, match="pass epsilon above 0 and delta between"):
        Budget(epsilon, delta)
