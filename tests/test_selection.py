"""The fast suite and the rest: together they are the full one, and thinned tables cover."""

import itertools

import pytest
from selection import covering, fast_items

pytest_plugins = ["pytester"]

TABLES = """
import pytest

@pytest.mark.full
def test_slow(): pass

def test_plain(): pass

@pytest.mark.parametrize("a", range(3))
def test_small(a): pass

@pytest.mark.parametrize("a", [*range(30), pytest.param("always", marks=pytest.mark.fast)])
def test_one_axis(a): pass

@pytest.mark.parametrize("b", "vwxyz")
@pytest.mark.parametrize("a", range(4))
def test_two_axes(a, b): pass
"""


def test_fast_and_rest_are_all_and_have_nothing_in_common(pytester):
    pytester.makepyfile(TABLES)
    options = ["-p", "selection", "-p", "no:cacheprovider", "--collect-only", "-q"]

    def collected(*more):
        lines = pytester.runpytest_inprocess(*options, *more).outlines
        return {line for line in lines if "::" in line}

    everything, fast, rest = collected(), collected("--fast"), collected("--rest")
    assert fast | rest == everything and not fast & rest
    names = {line.split("::")[1] for line in fast}
    assert {"test_plain", "test_small[0]", "test_small[2]", "test_one_axis[always]"} <= names
    assert "test_slow" not in names
    assert len([name for name in names if "one_axis" in name]) == 11
    two = [name[len("test_two_axes[") : -1].split("-") for name in names if "two_axes" in name]
    assert {a for a, _ in two} == set("0123") and {b for _, b in two} == set("vwxyz")
    assert len(two) < 20


@pytest.mark.parametrize("sizes", [(4, 5), (3, 3, 3), (2, 5, 3, 2)])
def test_covering_rows_have_every_value_and_every_pair(sizes):
    rows = list(itertools.product(*map(range, sizes)))
    chosen = [rows[i] for i in covering(rows)]
    assert len(chosen) < len(rows)
    for axis, size in enumerate(sizes):
        assert {row[axis] for row in chosen} == set(range(size))
    if len(sizes) > 2:
        for i, j in itertools.combinations(range(len(sizes)), 2):
            assert len({(row[i], row[j]) for row in chosen}) == sizes[i] * sizes[j]


def test_without_a_choice_all_tests_run(request):
    assert set(request.session.items) >= fast_items(request.session.items)
