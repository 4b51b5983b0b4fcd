"""`bevel report RUN`: a run as one HTML page."""

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
        description="Write a run as one self-contained HTML page.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, help="the folder of a run, or a copy of its released/")
    parser.add_argument(
        "--output",
        type=Path,
        help="by default RUN/released/report.html; with --include-raw, RUN/private/report.html",
    )
    parser.add_argument(
        "--include-raw",
        action="store_true",
        help="the owner's page, with what is NOT private: times, training loss, norms, batch sizes",
    )
    given = parser.parse_args(arguments)
    from bevel.report import write_report

    print(write_report(given.run, output=given.output, include_raw=given.include_raw))
    return 0
