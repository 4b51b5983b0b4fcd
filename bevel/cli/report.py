"""`bevel report RUN`: writes an HTML report of a run."""

import argparse
from collections.abc import Sequence
from pathlib import Path

EXAMPLES = """examples:
  bevel report runs/digits
  bevel report runs/digits --output digits.html
  bevel report runs/digits --include-raw
"""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="bevel report",
        description="Write a self-contained HTML report of a run.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, help="a run folder, or a copy of its released/")
    parser.add_argument(
        "--output",
        type=Path,
        help="by default RUN/released/report.html, or RUN/private/report.html with --include-raw",
    )
    parser.add_argument(
        "--include-raw",
        action="store_true",
        help="write the owner's report, which is NOT private: it adds times, training loss, norms "
        "and batch sizes",
    )
    options = parser.parse_args(arguments)
    from bevel.report import write_report

    print(write_report(options.run, output=options.output, include_raw=options.include_raw))
    return 0
