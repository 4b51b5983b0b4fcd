"""The findings of `doctor`."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from bevel.inspection.step_report import StepReport
from bevel.sharding.source_lines import SourceLine
from bevel.sharding.tables import rich_table, wrapped

# A wrong result or a broken privacy guarantee; wasted time or memory; worth knowing.
SEVERITIES = ("error", "warning", "note")


@dataclasses.dataclass(frozen=True)
class Finding:
    """One problem of a step on its mesh."""

    severity: str
    problem: str  # the name of the check
    what: str
    fix: str
    line: SourceLine | None = None
    bytes: float = 0.0  # needlessly sent or held by one device, if known

    def __str__(self) -> str:
        where = f" ({self.line})" if self.line else ""
        return f"{self.severity}: {self.what}{where}\n  fix: {self.fix}"


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """All findings, the worst first, and the report of the step. Falsy without findings."""

    findings: list[Finding]
    report: StepReport

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def of(self, problem: str) -> list[Finding]:
        return [finding for finding in self.findings if finding.problem == problem]

    def __str__(self) -> str:
        rows = [[f.severity, f.what, str(f.line or "-"), f.fix] for f in self.findings]
        head = ["severity", "what", "line", "fix"]
        return wrapped(rich_table(head, rows) if rows else "Nothing found.")

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON or a report."""
        return {
            "findings": [
                dataclasses.asdict(f) | {"line": f.line and str(f.line)} for f in self.findings
            ],
            "report": self.report.to_dict(),
        }


def worst_first(findings: list[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda f: (SEVERITIES.index(f.severity), -f.bytes))
