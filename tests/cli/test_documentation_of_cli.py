"""docs/cli.md names every command and every key, and its example runs."""

import dataclasses
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from bevel.cli import config, dispatch

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text()
TABLES = {field.name: field.type for field in dataclasses.fields(config.Config)}


@pytest.mark.parametrize("table", TABLES)
def test_every_key_is_named(table):
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `[{table}]`"))
    for field in dataclasses.fields(TABLES[table]):
        assert f"`{field.name}`" in row


def test_every_command_is_named():
    assert all(re.search(rf"^    bevel {name}\b", PAGE, re.MULTILINE) for name in dispatch.COMMANDS)


def test_the_model_of_the_page_predicts():
    names = {}
    exec(re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1], names)
    made = names["build"]((3,), 2)
    assert made.predict(made.init(jax.random.key(0)), jnp.ones((5, 3))).shape == (5, 2)
