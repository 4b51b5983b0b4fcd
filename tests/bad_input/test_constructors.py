"""Public constructors accept what makes sense, and raise a `BevelError` for everything else.

Every argument of every public constructor has a declared domain (domains.py), and is called with
valid values, near misses and values of other types (hostile.py), one or two at a time. A call must
accept what is inside of the domains, refuse what is not, never raise another exception, and answer
within seconds. `BEVEL_FUZZ_CASES` sets the number of random cases.
"""

import collections
import functools
import importlib
import inspect
import os

import hypothesis
import pytest
from bad_input.hostile import ANY, VALUES
from bad_input.rows import Row, fault
from hypothesis import strategies as st

# The tables are named after their packages. The others only read folders and files, take arrays or
# programs, or make results: report, shipping, frameworks and most of inspection.
TABLES = {
    f"bevel.{name}": importlib.import_module(f"bad_input.{name}")
    for name in (
        "batch_selection",
        "clipping",
        "noise_addition",
        "execution_plan",
        "accounting",
        "matrix_factorization",
        "optimizers",
        "choosing",
        "tuning",
        "training",
        "auditing",
        "datasets",
        "models",
        "keras_api",
        "sharding",
        "experimental",
    )
}
ROWS = [row for table in TABLES.values() for row in table.ROWS]
CASES = int(os.environ.get("BEVEL_FUZZ_CASES", "3000"))
FEW = min(300, CASES)


@pytest.mark.parametrize("package", TABLES)
def test_every_public_constructor_has_a_row(package):
    """A new one needs a row in the table of its package, or a reason why it has none."""
    table, module = TABLES[package], importlib.import_module(package)
    known = {row.name.split(".")[0].split(" ")[0] for row in table.ROWS} | table.EXEMPT.keys()
    public = {name for name in module.__all__ if not inspect.ismodule(getattr(module, name))}
    aliases = [getattr(module, name) for name in known & public]
    missing = [
        name
        for name in sorted(public - known)
        if getattr(module, name) not in aliases and _home(getattr(module, name)) == package
    ]
    assert not missing, "add rows for these names"
    assert all(table.EXEMPT.values())


def _home(value: object) -> str:
    """The public package that a name is defined in."""
    module = getattr(value, "__module__", "")
    return next((name for name in TABLES if f"{module}.".startswith(f"{name}.")), module)


def test_rows_list_all_arguments():
    """An argument without a domain would not be fuzzed."""
    fuzzed = collections.defaultdict(set)
    for row in ROWS:
        fuzzed[row.name.split(" ")[0]] |= row.arguments.keys()
    for row in ROWS:
        if not isinstance(row.call, functools.partial):
            parameters = inspect.signature(row.call).parameters.values()
            names = {p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
            assert not names - fuzzed[row.name.split(" ")[0]], row.name


@pytest.mark.parametrize("package", TABLES)
def test_valid_arguments_are_accepted(package):
    assert not [fault(row, {}) for row in TABLES[package].ROWS if fault(row, {})]


@st.composite
def calls(draw: st.DrawFn, rows: list[Row]) -> tuple[Row, dict]:
    row = draw(st.sampled_from(rows))
    names = draw(
        st.lists(st.sampled_from(sorted(row.arguments)), min_size=1, max_size=2, unique=True)
    )
    return row, {name: draw(ANY) for name in names}


@hypothesis.settings(max_examples=FEW)
@hypothesis.given(calls(ROWS))
def test_a_few_bad_arguments(call):
    row, changed = call
    found = fault(row, changed)
    assert not found, found


@pytest.mark.full
@pytest.mark.parametrize("package", TABLES)
def test_every_bad_value_of_every_argument(package):
    faults = [
        fault(row, {name: make})
        for row in TABLES[package].ROWS
        for name in row.arguments
        for make in VALUES
    ]
    assert not [found for found in faults if found]


@pytest.mark.full
@hypothesis.settings(max_examples=CASES, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(calls(ROWS))
def test_many_bad_arguments(call):
    row, changed = call
    found = fault(row, changed)
    assert not found, found
