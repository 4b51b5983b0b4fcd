"""HTML reports of runs: the guarantee, its cost, the accuracy, and how its arrays were sharded."""

from bevel.report.comparison import write_comparison
from bevel.report.page import write_report

__all__ = ["write_comparison", "write_report"]
