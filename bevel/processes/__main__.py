"""Run `launch` from the shell: `python -m bevel.processes --processes 2 -- CMD`."""

import argparse
import sys
from collections.abc import Sequence

from bevel.errors import FixArgumentsError
from bevel.processes.launching import launch


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="bevel launch", description="Run one program as several processes on this machine."
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--devices-per-process", type=int, default=4, help="virtual CPU devices")
    parser.add_argument("command", nargs="+", metavar="CMD", help="the command, after --")
    options = parser.parse_args(arguments)
    try:
        return launch(options.command, options.processes, options.devices_per_process)
    except FixArgumentsError as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
