"""`bevel verify STATEMENT`: checks a privacy statement against a ledger."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

from bevel.cli.command_parser import CommandParser

EXAMPLES = """examples:
  bevel verify runs/digits/export
  bevel verify privacy.json --ledger ledger.jsonl --model model.safetensors
  bevel verify privacy.json --ledger ledger.jsonl --json

The exit code is 1 if anything is not as stated.
"""


def main(arguments: Sequence[str]) -> int:
    parser = CommandParser(
        "verify",
        "Check a privacy statement against a ledger, and recompute its epsilon. This "
        "needs nothing but the two files.",
        EXAMPLES,
    )
    parser.add_argument("statement", type=Path, help="privacy.json, or the folder of an export")
    parser.add_argument("--ledger", type=Path, help="by default ledger.jsonl beside the statement")
    parser.add_argument("--model", type=Path, help="model.safetensors or model/, to check it too")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parsed(arguments)
    from bevel.shipping.verification import as_json, verify

    result = verify(options.statement, options.ledger, options.model)
    if options.json:
        print(as_json(result))
    else:
        for line in str(result).splitlines():
            indent = "    " if line.startswith("  - ") else "        "
            print(textwrap.fill(line, 80, subsequent_indent=indent, break_on_hyphens=False))
    return 0 if result.passed else 1
