"""The `bevel` command. Each command's module is imported only when the command is called."""

from bevel.cli.dispatch import main

__all__ = ["main"]
