"""`bevel report RUN ...`: writes an HTML report of a run, or a comparison of several."""

from collections.abc import Sequence
from pathlib import Path

from bevel.cli.command_parser import CommandParser

EXAMPLES = """examples:
  bevel report runs/digits
  bevel report runs/digits --output digits.html
  bevel report runs/digits --include-raw
  bevel report runs/digits --include-raw --baseline runs/non-private
  bevel report runs/digits --baseline 0.975 --publish-baseline
  bevel report runs/*                  # one page that compares all runs
"""


def main(arguments: Sequence[str]) -> int:
    parser = _parser()
    options = parser.parsed(arguments)
    from bevel.report import write_comparison, write_report

    if len(options.runs) > 1:
        own = {
            "--include-raw": options.include_raw,
            "--baseline": options.baseline is not None,
            "--publish-baseline": options.publish_baseline,
            "--audit": options.audit is not None,
        }
        given = [name for name, is_given in own.items() if is_given]
        if given:
            parser.error(f"{given[0]} is for the report of one run: pass one folder.")
        print(write_comparison(options.runs, output=options.output or Path("comparison.html")))
        return 0
    print(
        write_report(
            options.runs[0],
            output=options.output,
            include_raw=options.include_raw,
            baseline=_baseline(options.baseline),
            publish_baseline=options.publish_baseline,
            audit=options.audit,
        )
    )
    return 0


def _parser() -> CommandParser:
    parser = CommandParser(
        "report",
        "Write a self-contained HTML report of a run. With several folders, write one "
        "page that compares the runs.",
        EXAMPLES,
    )
    parser.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="a run folder, or a copy of its released/"
    )
    parser.add_argument(
        "--output",
        type=Path,
        help="by default RUN/released/report.html, or RUN/private/report.html with --include-raw; "
        "comparison.html in the working directory for several runs",
    )
    parser.add_argument(
        "--include-raw",
        action="store_true",
        help="write the owner's report, which is NOT private: it adds times, training loss, norms, "
        "batch sizes and the audit",
    )
    parser.add_argument(
        "--baseline",
        metavar="RUN_OR_NUMBER",
        help="the folder of a non-private run, or its accuracy, to compare with; no epsilon covers "
        "it",
    )
    parser.add_argument(
        "--publish-baseline",
        action="store_true",
        help="show the baseline on the public page too",
    )
    parser.add_argument(
        "--audit",
        type=Path,
        metavar="AUDITED_RUN",
        help="with --include-raw: show the audit of this run, which was trained for it",
    )
    return parser


def _baseline(given: str | None) -> float | Path | None:
    """A number, or else a folder."""
    if given is None:
        return None
    try:
        return float(given)
    except ValueError:
        return Path(given)
