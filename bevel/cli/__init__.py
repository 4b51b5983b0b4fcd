"""The `bevel` command. Commands are loaded when they are called."""

from bevel.cli.dispatch import main

__all__ = [
    "main",
]
