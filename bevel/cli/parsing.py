"""Command lines as dataclasses, by tyro: a field is an option, its docstring the help."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from bevel.cli.config import Config, PlanTable, read_config

T = TypeVar("T")


def parsed(kind: type[T], command: str, about: str, arguments: Sequence[str]) -> T:
    """The options of a command. Wrong usage ends the process with code 2."""
    import tyro

    return tyro.cli(
        kind,
        prog=f"bevel {command}",
        description=about.strip(),
        args=list(arguments),
        config=(tyro.conf.OmitArgPrefixes,) if kind is not Config else (),
    )


def config_and_overrides(command: str, about: str, arguments: Sequence[str]) -> Config:
    """The config that is named first, with what `--table.key=value` changes in it."""
    import tyro

    prog = f"bevel {command} CONFIG.toml"
    wants_help = bool({"-h", "--help"} & set(arguments))
    if not wants_help and (not arguments or arguments[0].startswith("-")):
        print(f"bevel: usage: {prog} [--table.key=value ...]", file=sys.stderr)
        raise SystemExit(2)
    named = bool(arguments) and not arguments[0].startswith("-")
    default: Any = Config(PlanTable(batch_size=256, steps=200))
    if named and (not wants_help or Path(arguments[0]).is_file()):
        default = read_config(arguments[0])
    return tyro.cli(
        Config,
        prog=prog,
        description=about.strip(),
        args=list(arguments[1:] if named else arguments),
        default=default,
    )
