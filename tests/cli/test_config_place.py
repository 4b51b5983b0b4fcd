"""An error about a value names the line of the config that sets it."""

import pytest

from bevel.cli.config_place import with_place


@pytest.fixture(name="config")
def fixture_config(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[plan]\nsteps = 0\nmin_sep = 2\n")
    return str(path)


def test_the_line_is_named(config):
    found = with_place("steps is 0: pass more.", [config, "--plan.epsilon=3"])
    assert found == f"{config}, line 2: [plan] steps is 0: pass more."
    assert with_place("[plan] steps is 0.", [config]) == f"{config}, line 2: [plan] steps is 0."


@pytest.mark.parametrize(
    "message, more",
    [
        ("steps is 0: pass more.", ["--plan.steps=0"]),
        ("min_sep is 0: pass more.", ["--plan.min-sep", "0"]),
        ("epsilon is 0: pass more.", []),
        ("nothing is known.", []),
        ("the data differ.", []),
    ],
)
def test_what_the_config_does_not_set_stays_as_it_is(message, more, config):
    assert with_place(message, [config, *more]) == message


def test_without_a_config_it_stays_as_it_is(tmp_path):
    assert with_place("steps is 0.", ["--steps", "0"]) == "steps is 0."
    assert with_place("steps is 0.", [str(tmp_path / "none.toml")]) == "steps is 0."
