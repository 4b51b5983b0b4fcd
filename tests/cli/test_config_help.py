"""Help lists every key with its meaning, and defaults only where there are some."""

import dataclasses
import re
import typing

from bevel.cli.config import Config, PlanTable
from bevel.cli.config_help import WIDTH, config_help
from bevel.cli.overrides import option_name


def test_every_key_is_described_within_80_columns():
    text = config_help("bevel train CONFIG.toml", "About it.", None)
    assert text.startswith(
        "usage: bevel train CONFIG.toml\n\nAbout it.\n\n[plan] The privacy plan."
    )
    assert max(map(len, text.splitlines())) <= WIDTH
    for table, kind in typing.get_type_hints(Config).items():
        for field in dataclasses.fields(kind):
            after = text.split(f"\n  {option_name(table, field.name)}", 1)[1].splitlines()[1]
            assert re.match(r" {6}\S", after)


def test_only_keys_with_a_default_have_one():
    text = " ".join(config_help("", "", None).split())
    assert "Number of steps of the whole run. (required in the config)" in text
    assert (
        "--plan.epsilon NUMBER Privacy budget of the run. The noise is calibrated to it. --" in text
    )
    assert "(default: 0.5)" in text and "None" not in text
    assert "--model.widths INTEGER ... " in text and "(default: auto)" in text
    assert "--plan.mechanism {dpsgd,bandmf,blt,none}" in text


def test_the_help_of_a_config_shows_its_values():
    text = config_help("", "", Config(PlanTable(batch_size=7.0, steps=31)))
    assert "(in the config: 31)" in text and "required" not in text
