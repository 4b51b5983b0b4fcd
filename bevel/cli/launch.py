"""`bevel launch --processes 2 -- CMD`: runs one program as several local processes."""

from collections.abc import Sequence

from bevel.cli.command_parser import CommandParser
from bevel.errors import FixArgumentsError

EXAMPLES = """examples:
  bevel launch --processes 2 --devices-per-process 4 -- bevel train examples/digits.toml
  bevel launch --processes 2 -- python train.py

Your own program must call bevel.processes.join() first.
"""


def main(arguments: Sequence[str]) -> int:
    parser = CommandParser(
        "launch",
        "Run one program as several local processes, on virtual CPU devices.",
        EXAMPLES,
        usage="bevel launch [--processes N] [--devices-per-process N] -- CMD ...",
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--devices-per-process", type=int, default=4)
    words = list(arguments)
    separator = words.index("--") if "--" in words else len(words)
    options, command = parser.parsed(words[:separator]), words[separator + 1 :]
    if not command:
        parser.error("there is no program to launch: write it after --")
    if options.processes < 1 or options.devices_per_process < 1:
        raise FixArgumentsError("--processes and --devices-per-process: pass at least 1.")
    from bevel.processes import launch

    return launch(command, options.processes, options.devices_per_process)
