"""`bevel spent LEDGER`: what was spent on a data set, by all runs of its ledger."""

import argparse
from collections.abc import Sequence
from pathlib import Path

EXAMPLES = """examples:
  bevel spent runs/digits
  bevel spent all.jsonl --delta 1e-6
"""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="bevel spent",
        description="What a ledger says was spent, over all its runs.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("ledger", type=Path, help="a ledger, or the folder of a run that has one")
    parser.add_argument("--delta", type=float, help="by default that of the ledger's budget")
    given = parser.parse_args(arguments)
    from bevel.accounting import Ledger

    file = given.ledger / "ledger.jsonl" if given.ledger.is_dir() else given.ledger
    print(Ledger.read(file).spent(given.delta).describe())
    return 0
