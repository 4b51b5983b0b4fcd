"""Parses command lines into configs with tyro: fields are options, docstrings are help."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bevel.cli.config import Config, PlanTable, read_config


def config_and_overrides(
    command: str,
    about: str,
    arguments: Sequence[str],
    left_out: Mapping[str, Mapping[str, Any]] | None = None,
) -> Config:
    """Reads the config that is named first, with the overrides `--table.key=value` applied.

    `left_out` has values for keys that the file leaves out, by the names of their tables.
    """
    import tyro

    prog = f"bevel {command} CONFIG.toml"
    wants_help = bool({"-h", "--help"} & set(arguments))
    if not wants_help and (not arguments or arguments[0].startswith("-")):
        print(f"bevel: usage: {prog} [--table.key=value ...]", file=sys.stderr)
        raise SystemExit(2)
    has_path = bool(arguments) and not arguments[0].startswith("-")
    default: Any = Config(PlanTable(batch_size=256, steps=200))
    if has_path and (not wants_help or Path(arguments[0]).is_file()):
        default = read_config(arguments[0], left_out)
    return tyro.cli(
        Config,
        prog=prog,
        description=about.strip(),
        args=list(arguments[1:] if has_path else arguments),
        default=default,
    )
