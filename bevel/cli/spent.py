"""`bevel spent LEDGER`: what was spent on a data set, by all runs of its ledger."""

import argparse
import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

from bevel.training.folder import LEDGER, RELEASED, RUN

EXAMPLES = """examples:
  bevel spent runs/digits
  bevel spent all.jsonl --delta 1e-6
  bevel spent all.jsonl --head "$(cat head-of-last-week)"
"""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="bevel spent",
        description="What a ledger says was spent, over all its runs, and the hash of its last "
        "line (its head). A head that is kept elsewhere shows later that no line is missing.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("ledger", type=Path, help="a ledger, or the folder of a run that has one")
    parser.add_argument("--delta", type=float, help="by default that of the ledger's budget")
    parser.add_argument("--head", metavar="HASH", help="fail unless a line has this hash")
    given = parser.parse_args(arguments)
    from bevel.accounting import Ledger

    ledger = Ledger.read(_ledger_file(given.ledger))
    if given.head is not None:
        ledger.check_head(given.head)
    print(ledger.spent(given.delta).describe())
    print(f"head: {ledger.head} ({ledger.line_count} lines)")
    return 0


def _ledger_file(path: Path) -> Path:
    """The ledger of a run's folder, or of what it released; a file is its own."""
    if not path.is_dir():
        return path
    released = path / RELEASED if (path / RELEASED).is_dir() else path
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        return released / json.loads((released / RUN).read_text())["ledger"]
    return released / LEDGER
