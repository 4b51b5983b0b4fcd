"""`bevel spent LEDGER`: shows the privacy that all runs of a ledger spent."""

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
        description="Show the privacy that all runs of a ledger spent, and the hash of its last "
        "line (its head). Store the head elsewhere to check later that no line is missing.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("ledger", type=Path, help="a ledger file, or a run folder")
    parser.add_argument("--delta", type=float, help="by default the delta of the ledger's budget")
    parser.add_argument("--head", metavar="HASH", help="fail unless a line has this hash")
    options = parser.parse_args(arguments)
    from bevel.accounting import Ledger

    ledger = Ledger.read(_ledger_file(options.ledger))
    if options.head is not None:
        ledger.check_head(options.head)
    print(ledger.spent(options.delta).describe())
    print(f"head: {ledger.head} ({ledger.line_count} lines)")
    return 0


def _ledger_file(path: Path) -> Path:
    """The ledger of a run folder or of a copy of its released/. A file is returned as it is."""
    if not path.is_dir():
        return path
    released = path / RELEASED if (path / RELEASED).is_dir() else path
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        return released / json.loads((released / RUN).read_text())["ledger"]
    return released / LEDGER
