"""Reads the config that a command line names, with the options that follow it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bevel.cli.config import Config, read_config
from bevel.cli.config_help import config_help
from bevel.cli.overrides import with_overrides
from bevel.cli.printing import print_error
from bevel.errors import FixArgumentsError


def config_and_overrides(
    command: str,
    about: str,
    arguments: Sequence[str],
    left_out: Mapping[str, Mapping[str, Any]] | None = None,
) -> Config:
    """Reads the config that is named first, with the overrides `--table.key=value` applied.

    `left_out` has values for keys that the file leaves out, by the names of their tables.
    """
    usage = f"bevel {command} CONFIG.toml [--table.key=value ...]"
    words = list(arguments)
    path = words.pop(0) if words and not words[0].startswith("-") else None
    if {"-h", "--help"} & set(words):
        config = read_config(path, left_out) if path and Path(path).is_file() else None
        print(config_help(usage, about, config))
        raise SystemExit(0)
    if path is None:
        print_error(f"usage: {usage}")
        raise SystemExit(2)
    config = read_config(path, left_out)
    try:
        return with_overrides(config, words)
    except FixArgumentsError as error:
        print_error(str(error))
        raise SystemExit(2) from None


def taken(flag: str, words: Sequence[str]) -> tuple[bool, list[str]]:
    """Whether a flag such as --json is among the words, and the other words."""
    return flag in words, [word for word in words if word != flag]
