"""`bevel export RUN`: writes the model of a run with a privacy statement."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

from bevel.cli.command_parser import CommandParser

EXAMPLES = """examples:
  bevel export runs/digits
  bevel export runs/digits --output shipped --format orbax
  bevel export runs/digits --tuned "the learning rate, on public data"
  bevel verify runs/digits/export
"""


def main(arguments: Sequence[str]) -> int:
    parser = CommandParser(
        "export",
        "Write the model of a run, a machine-readable privacy statement about it and a "
        "copy of the ledger. Only what the run released is read.",
        EXAMPLES,
    )
    parser.add_argument("run", type=Path, help="a run folder, or a copy of its released/")
    parser.add_argument("--output", type=Path, help="a new folder; by default RUN/export")
    parser.add_argument("--format", choices=["safetensors", "orbax"], default="safetensors")
    parser.add_argument("--step", type=int, help="of a checkpoint; by default the newest")
    parser.add_argument("--delta", type=float, help="by default the delta of the run")
    parser.add_argument("--ledger", type=Path, help="if released/ does not contain it")
    parser.add_argument(
        "--without-ledger",
        action="store_true",
        help="do not copy the ledger, which has the names of all its runs",
    )
    parser.add_argument(
        "--tuned",
        metavar="TEXT",
        default="not counted",
        help="what you chose by looking at results that the ledger does not count: 'nothing', or "
        "a description; by default 'not counted'",
    )
    options = parser.parsed(arguments)
    from bevel.shipping import export, read_statement

    folder = export(
        options.run,
        options.output,
        options.format,
        step=options.step,
        delta=options.delta,
        ledger=options.ledger,
        include_ledger=not options.without_ledger,
        tuned=options.tuned,
    )
    statement = read_statement(folder)
    sentences = [statement.claim, statement.run.status, *statement.warnings]
    print(folder)
    for sentence in sentences:
        print(textwrap.fill(sentence, 80, initial_indent="  ", subsequent_indent="  "))
    print(f"Anyone can check this: bevel verify {folder}")
    return 0
