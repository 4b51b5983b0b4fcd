"""Overrides reach the config they are for; everything else in it stays."""

import dataclasses

import pytest

from bevel.cli.config import read_config
from bevel.cli.parsing import config_and_overrides


def test_overrides(config_file):
    given = [str(config_file), "--plan.batch-size=32", "--plan.epsilon", "2", "--mesh.axes=data=8"]
    found = config_and_overrides("train", "About.", given)
    read = read_config(config_file)
    assert found.plan == dataclasses.replace(read.plan, batch_size=32.0, epsilon=2.0)
    assert found.mesh == dataclasses.replace(read.mesh, axes="data=8")
    assert (found.run, found.model, found.data) == (read.run, read.model, read.data)


def test_without_overrides_it_is_the_file(config_file):
    assert config_and_overrides("train", "", [str(config_file)]) == read_config(config_file)


@pytest.mark.parametrize("given", [[], ["--plan.steps=3"]])
def test_a_config_must_be_named(given, capsys):
    with pytest.raises(SystemExit) as end:
        config_and_overrides("train", "", given)
    assert end.value.code == 2
    assert "usage: bevel train CONFIG.toml" in capsys.readouterr().err
