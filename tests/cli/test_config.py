"""A config file is read to the last key, and what is wrong in it is named."""

from pathlib import Path

import pytest

from bevel.cli.config import Config, read_config
from bevel.errors import FixArgumentsError

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "digits.toml"
PLAN = "[plan]\nbatch_size = 8\nsteps = 3\n"


@pytest.fixture(name="read")
def fixture_read(tmp_path):
    def read(text):
        path = tmp_path / "config.toml"
        path.write_text(text)
        return read_config(path)

    return read


def test_the_example_is_the_demo():
    from bevel.cli.demo import DIGITS

    read = read_config(EXAMPLE)
    assert (read.plan, read.model, read.optimizer) == (DIGITS.plan, DIGITS.model, DIGITS.optimizer)
    assert (read.mesh, read.data) == (DIGITS.mesh, DIGITS.data)


def test_what_is_not_said_has_its_default(read):
    config = read(PLAN)
    assert config == Config(config.plan)
    assert config.plan.batch_size == 8.0
    assert isinstance(config.plan.batch_size, float)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PLAN + "epslon = 3\n", "[plan] unknown key 'epslon'. Did you mean 'epsilon'?"),
        (PLAN + "[optimiser]\n", "unknown key 'optimiser'. Did you mean 'optimizer'?"),
        (PLAN + "zzz = 3\n", "unknown key 'zzz'. The keys are: batch_size, steps"),
        ("[plan]\nsteps = 3\n", "[plan] batch_size is missing: set it to a number"),
        ("", "[plan] is missing."),
        ("plan = 3\n", "[plan] is 3: write a table"),
        (PLAN + "epsilon = 'three'\n", "[plan] epsilon is 'three': set it to a number"),
        ("[plan]\nbatch_size = 8\nsteps = 3.5\n", "steps is 3.5: set it to an integer"),
        ("[plan]\nbatch_size = true\nsteps = 3\n", "batch_size is True: set it to a number"),
        (PLAN + "mechanism = 'dpsdg'\n", "mechanism is 'dpsdg'. Did you mean 'dpsgd'?"),
        (PLAN + "[model]\nwidths = [8, 'x']\n", "widths is 'x': set it to an integer"),
        (PLAN + "[model]\nwidths = 8\n", "widths is 8"),
        (PLAN + "[data]\nclasses = 2.5\n", "classes is 2.5: set it to an integer"),
        (PLAN + "[data]\nclasses = [1, 2]\n", "classes is 1: set it to a string"),
        (PLAN + "[data]\ncolumns = 3\n", "columns is 3"),
        (PLAN + "[data.columns]\na = [0, 1]\na = [0, 2]\n", "is not valid TOML"),
        ("[plan\n", "is not valid TOML"),
    ],
)
def test_what_is_wrong_is_named(read, text, message):
    with pytest.raises(FixArgumentsError) as caught:
        read(text)
    assert message in str(caught.value)


def test_declared_columns_and_classes(read):
    text = """
[data]
classes = ["a", "b"]
y_range = [0, 1.5]
size = [4, 4, 3]
[data.columns]
"hours per week" = [0, 100, "missing"]
joined = [2010-01-01, 2024-12-31]
job = ["x", "y"]
"""
    data = read(PLAN + text).data
    assert (data.classes, data.y_range, data.size) == (("a", "b"), (0.0, 1.5), (4, 4, 3))
    assert data.columns == {
        "hours per week": (0, 100, "missing"),
        "joined": ("2010-01-01..2024-12-31",),
        "job": ("x", "y"),
    }
    assert read(PLAN + "[data]\nclasses = 3\n").data.classes == 3


def test_values_for_keys_that_are_left_out(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text("[plan]\nsteps = 3\n")
    left_out = {"plan": {"steps": 9, "batch_size": 8}, "optimizer": {"momentum": 0.5}}
    found = read_config(path, left_out)
    assert (found.plan.steps, found.plan.batch_size, found.optimizer.momentum) == (3, 8, 0.5)
    path.write_text("plan = 3\n")
    with pytest.raises(FixArgumentsError, match=r"\[plan\] is 3: write a table"):
        read_config(path, left_out)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FixArgumentsError, match=r"there is no config at .*none.toml"):
        read_config(tmp_path / "none.toml")


def test_a_list_that_may_be_left_out(read):
    assert read(PLAN + "[model]\nwidths = [4, 8]\n").model.widths == (4, 8)
    assert read(PLAN).model.widths is None
