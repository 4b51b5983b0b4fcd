"""docs/cli.md names every command and every key."""

import dataclasses
import re
from pathlib import Path

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
