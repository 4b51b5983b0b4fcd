"""`bevel spent LEDGER`: shows the privacy that all runs of a ledger spent."""

import contextlib
import json
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bevel.cli.command_parser import CommandParser
from bevel.cli.printing import width
from bevel.training.folder import LEDGER, RELEASED, RUN
from bevel.training.terminal_progress import progress_of, wrapped_note

if TYPE_CHECKING:
    from bevel.accounting import Ledger
    from bevel.accounting.ledger.spent import Spent

# The fingerprint of a plan is shown by its first digits.
FINGERPRINT = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")

EXAMPLES = """examples:
  bevel spent runs/digits
  bevel spent all.jsonl --delta 1e-6
  bevel spent all.jsonl --head "$(cat head-of-last-week)"
  bevel spent all.jsonl --json | jq .epsilon
"""


def main(arguments: Sequence[str]) -> int:
    parser = CommandParser(
        "spent",
        "Show the privacy that all runs of a ledger spent, and the hash of its last\n"
        "line (its head). Store the head elsewhere to check later that no line is\nmissing.",
        EXAMPLES,
    )
    parser.add_argument("ledger", type=Path, help="a ledger file, or a run folder")
    parser.add_argument("--delta", type=float, help="by default the delta of the ledger's budget")
    parser.add_argument("--head", metavar="HASH", help="fail unless a line has this hash")
    parser.add_argument(
        "--full",
        action="store_true",
        help="add up every line, also in archives, and trust no summary",
    )
    parser.add_argument(
        "--compact",
        action="store_true",
        help="move the lines to an archive beside the ledger; keep it",
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON; epsilon is null if it is infinite"
    )
    options = parser.parsed(arguments)
    from bevel.accounting import Ledger

    with progress_of(sys.stderr.isatty(), sys.stderr).working("reading the ledger"):
        path = _ledger_file(options.ledger)
        ledger = Ledger.read(path, full=options.full)
        if options.compact:
            ledger = _compacted(path, ledger)
        if options.head is not None:
            ledger.check_head(options.head)
        spent = ledger.spent(options.delta)
    if options.json:
        print(json.dumps(_as_data(spent, ledger)))
        return 0
    for line in spent.describe().splitlines():
        print("\n".join(wrapped_note(FINGERPRINT.sub(r"\1", line), width())))
    print(f"lines: {ledger.line_count}\nhead: {ledger.head}")
    return 0


def _compacted(path: Path, ledger: "Ledger") -> "Ledger":
    from bevel.accounting import Ledger

    terms = ledger.terms
    with Ledger.open(
        path, unit=terms.unit, relation=terms.relation, budget=terms.budget
    ) as writable:
        archive = writable.compact()
    print(f"archive: {archive}", file=sys.stderr)
    return Ledger.read(path)


def _as_data(spent: "Spent", ledger: "Ledger") -> dict[str, Any]:
    budget = spent.terms.budget
    return {
        "epsilon": spent.epsilon if math.isfinite(spent.epsilon) else None,
        "delta": spent.delta,
        "unit": spent.terms.unit,
        "relation": spent.terms.relation,
        "budget": budget and {"epsilon": budget.epsilon, "delta": budget.delta},
        "runs": list(ledger.runs),
        "lines": ledger.line_count,
        "head": ledger.head,
    }


def _ledger_file(path: Path) -> Path:
    """The ledger of a run folder or of a copy of its released/. A file is returned as it is."""
    if not path.is_dir():
        return path
    released = path / RELEASED if (path / RELEASED).is_dir() else path
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        return released / json.loads((released / RUN).read_text())["ledger"]
    return released / LEDGER
