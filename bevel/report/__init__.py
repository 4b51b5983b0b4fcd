"""HTML reports of runs: the guarantee, its cost, the accuracy, and where the run was placed."""

from bevel.report.page import write_report

__all__ = [
    "write_report",
]
