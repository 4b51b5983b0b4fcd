"""Which tests are in the fast suite, and which in the rest (`pytest --fast`, `pytest --rest`).

Fast is everything but
- tests marked `full`: several processes, kills, whole programs, long examples;
- most cases of tests with many. With one `parametrize`, every third case runs. With several, enough
  cases run that every value of each occurs, and from three on every pair of values. A case that is
  marked `fast` always runs.
`make test-full` runs everything.
"""

import collections
import itertools
from collections.abc import Hashable, Iterable

import jax
import pytest

LARGE = 6  # tests with more cases than this are thinned
EVERY = 3


def pytest_addoption(parser):
    group = parser.getgroup("bevel")
    group.addoption("--fast", action="store_true", help="the suite for daily work")
    group.addoption("--rest", action="store_true", help="what --fast leaves out")


def pytest_configure(config):
    config.addinivalue_line("markers", "full: left out of the fast suite")
    config.addinivalue_line("markers", "fast: a row of a large table that always runs")
    if config.getoption("--fast"):
        # Compiling takes most of the time. Without LLVM's optimisations it takes a quarter less.
        jax.config.update("jax_disable_most_optimizations", True)


def pytest_collection_modifyitems(config, items):
    fast, rest = config.getoption("--fast"), config.getoption("--rest")
    if not fast and not rest:
        return
    chosen = fast_items(items)
    kept = [item for item in items if (item in chosen) == fast]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


def fast_items(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    tables = collections.defaultdict(list)
    for item in items:
        if item.get_closest_marker("full") is None:
            tables[item.nodeid.partition("[")[0]].append(item)
    return set(itertools.chain.from_iterable(map(thinned, tables.values())))


def thinned(rows: list[pytest.Item]) -> list[pytest.Item]:
    """The rows of one table that the fast suite runs."""
    if len(rows) <= LARGE:
        return rows
    always = [row for row in rows if row.get_closest_marker("fast")]
    axes = [axes_of(row) for row in rows]
    if len(axes[0]) < 2:
        return [*always, *rows[::EVERY]]
    return [*always, *(rows[i] for i in covering(axes))]


def axes_of(item: pytest.Item) -> tuple[Hashable, ...]:
    """The value of each `parametrize` of a row, as something to compare."""
    values = []
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0]
        names = [n.strip() for n in names.split(",")] if isinstance(names, str) else names
        values.append(tuple(id(item.callspec.params[name]) for name in names))
    return tuple(values)


def covering(rows: list[tuple[Hashable, ...]]) -> list[int]:
    """Row numbers that cover each value of two axes, or each pair of values of more."""
    width = 1 if len(rows[0]) == 2 else 2
    parts = [set(itertools.combinations(enumerate(row), width)) for row in rows]
    missing, chosen = set().union(*parts), list[int]()
    while missing:
        best = max(range(len(rows)), key=lambda i: len(parts[i] & missing))
        chosen.append(best)
        missing -= parts[best]
    return sorted(chosen)
