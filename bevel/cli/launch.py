"""`bevel launch --processes 2 -- CMD`: one program as several local processes."""

import argparse
from collections.abc import Sequence

EXAMPLES = """examples:
  bevel launch --processes 2 --devices-per-process 4 -- bevel train examples/digits.toml
  bevel launch --processes 2 -- python train.py

A program of your own calls bevel.processes.join() first.
"""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="bevel launch",
        usage="bevel launch [--processes N] [--devices-per-process N] -- CMD ...",
        description="Run one program as several local processes, on virtual CPU devices.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--devices-per-process", type=int, default=4)
    given = list(arguments)
    cut = given.index("--") if "--" in given else len(given)
    options, command = parser.parse_args(given[:cut]), given[cut + 1 :]
    if not command:
        parser.error("there is nothing to launch: write the program after --")
    from bevel.processes import launch

    return launch(command, options.processes, options.devices_per_process)
