"""One page about a run: what it promises, what it cost, how good the model is, where it ran."""

from bevel.report.page import write_report

__all__ = [
    "write_report",
]
