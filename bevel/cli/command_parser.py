"""The parser of a command's options, whose errors are one short message."""

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from bevel.checks import nearest
from bevel.cli.printing import print_error


class CommandParser(argparse.ArgumentParser):
    """Parses the options of `bevel COMMAND`. Wrong usage is one message and exit code 2.

    Args:
      command: the name of the command.
      about: what it does, printed as it is.
      examples: printed as they are, below the options.
    """

    def __init__(self, command: str, about: str, examples: str, **options: Any) -> None:
        super().__init__(
            prog=f"bevel {command}",
            description=about,
            epilog=examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            **options,
        )

    def parsed(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parses all arguments. An unknown option is named with the nearest known one."""
        options, unknown = self.parse_known_args(list(arguments))
        if unknown:
            known = [name for action in self._actions for name in action.option_strings]
            self.error(f"unknown option {unknown[0]}{nearest(unknown[0], known)}")
        return options

    def error(self, message: str) -> NoReturn:
        message = re.sub(r"^the following arguments are required: (.*)$", r"\1 is missing", message)
        end = "" if message.endswith("?") else "."
        print_error(f"{message.rstrip('.')}{end} `{self.prog} --help` shows the options.")
        raise SystemExit(2)
