"""The table of growth: its exponents are those of the costs, and one command prints it."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

_file = Path(__file__).resolve().parents[1] / "benchmarks" / "growth.py"
_spec = importlib.util.spec_from_file_location("growth", _file)
growth = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = growth
_spec.loader.exec_module(growth)

SIZES = (10, 100, 1000, 10_000)


@pytest.mark.parametrize("power", [-1, 0, 0.5, 1, 2])
def test_an_exponent_is_that_of_the_power(power):
    values = [3e-4 * size**power for size in SIZES]
    assert growth.exponent(SIZES, values) == pytest.approx(power)
    in_any_order = growth.exponent(SIZES[::-1], values[::-1])
    assert in_any_order == pytest.approx(power)


def test_an_exponent_is_that_of_the_largest_sizes():
    floor = [1.0 + 1e-3 * size for size in SIZES]  # a constant, then linear
    assert 0.4 < growth.exponent(SIZES, floor) < 1
    assert growth.exponent(SIZES, [9.0, 1.0, 1.0, 1.0]) == pytest.approx(0)


def test_an_exponent_of_nothing_is_zero():
    assert growth.exponent(SIZES, [0.0] * 4) == growth.exponent((10,), (1.0,)) == 0


def test_numbers_are_short():
    shown = [growth.short_size(size) for size in (8, 300, 1000, 10**12, 3 * 10**7, 1234)]
    assert shown == ["8", "300", "1e3", "1e12", "3e7", "1234"]
    values = [(0.0021, "s"), (150, "s"), (3.2e-6, "s"), (4.4e6, "B"), (12, "B"), (3.0, "x")]
    shown = [growth.short_value(*value) for value in values]
    assert shown == ["2.1 ms", "150 s", "3.2 us", "4.4 MB", "12 B", "3x"]


def rows_of(axes, folder):
    """Runs the command as a user does."""
    command = [sys.executable, str(_file), "--quick", "--only", axes]
    done = subprocess.run(
        [*command, "--json", str(folder / "growth.json")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    rows = json.loads((folder / "growth.json").read_text())
    assert done.stdout.count("\n| ") == len(rows) + 1 and "exponent" in done.stdout
    return rows


def test_one_command_prints_the_table(tmp_path):
    rows = rows_of("users", tmp_path)
    assert {row["axis"] for row in rows} == {"users"} and len(rows) == 4
    assert all(value > 0 for row in rows for value in row["values"])


@pytest.mark.full
def test_all_rows_of_the_host_can_be_measured(tmp_path):
    rows = rows_of("examples,steps,events", tmp_path)
    assert [axis for axis in growth.AXES if axis in {r["axis"] for r in rows}] == [
        "examples",
        "steps",
        "events",
    ]
    assert all(len(row["values"]) == len(row["sizes"]) >= 2 for row in rows)


def test_an_unknown_axis_is_refused():
    command = [sys.executable, str(_file), "--only", "user"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "known: examples, users" in done.stderr
