"""What an audit of the run found: private/audit.json, read, put into words and drawn.

The scores of an audit are computed from what every step released, without noise of their own, so
only the owner's page shows them.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from decimal import ROUND_FLOOR, Decimal
from pathlib import Path
from typing import Any

from bevel.accounting.rounding import shown_delta, shown_epsilon
from bevel.errors import FixArgumentsError
from bevel.report.axis import Axis, axis_of
from bevel.report.figure import Figure, figure, is_number, thinned
from bevel.report.line_chart import Series
from bevel.report.run_files import parsed_record
from bevel.training.folder import PRIVATE

AUDIT = "audit.json"
NUMBERS = ("promised", "delta", "bound", "limit", "significance", "canaries", "held_in")
MOST_BINS = 1000


@dataclasses.dataclass(frozen=True)
class AuditReport:
    """The section of an audit: the verdict, facts, figures, and what was and was not attacked."""

    passed: bool
    verdict: str
    facts: tuple[tuple[str, str], ...]
    figures: tuple[Figure, ...]
    attacked: tuple[str, ...]
    not_attacked: tuple[str, ...]


def read_audit(
    private: Path | None, other: str | os.PathLike[str] | None = None
) -> AuditReport | None:
    """The audit of a run, or of the run in the folder `other`. None if the run has none.

    Raises:
      FixArgumentsError: the file is damaged, or `other` has no audit.
    """
    path = Path(other) / PRIVATE / AUDIT if other is not None else private and private / AUDIT
    if path is None or (other is None and not path.exists()):
        return None
    if not path.exists():
        raise FixArgumentsError(
            f"there is no {path}: {other} was not audited. Run `bevel audit` with a config and "
            f"--folder, and pass that folder."
        )
    record = parsed_record(path)
    try:
        return _report(record)
    except (KeyError, TypeError, ValueError) as error:
        raise FixArgumentsError(
            f"{path} is not a valid record of an audit ({type(error).__name__}: {error}): run the "
            "audit again, or restore the file from a copy."
        ) from error


def _report(record: Mapping[str, Any]) -> AuditReport:
    found = {name: _number(record, name) for name in NUMBERS}
    if not isinstance(record["passed"], bool):
        raise ValueError("passed is not true or false")
    return AuditReport(
        passed=record["passed"],
        verdict=_verdict(record["passed"], found),
        facts=_facts(record, found),
        figures=(_histogram(record["histogram"]), _roc(record["roc"], record["promise"])),
        attacked=_texts(record, "attacked"),
        not_attacked=_texts(record, "not_attacked"),
    )


def _verdict(passed: bool, found: Mapping[str, float]) -> str:
    promised = f"ε = {shown_epsilon(found['promised'])} at δ = {shown_delta(found['delta'])}"
    measured = f"ε is at least {_down(found['bound'])}, with {_confidence(found)} confidence"
    if passed:
        return (
            f"The audit passed: the attack found no violation of the promise, {promised}. It shows "
            f"that {measured}. A passed audit is not a proof: another attack might find more."
        )
    return (
        f"The audit failed: the run loses more privacy than it promises. The promise is {promised},"
        f" but the attack shows that {measured}. Do not release this model before you know why."
    )


def _facts(record: Mapping[str, Any], found: Mapping[str, float]) -> tuple[tuple[str, str], ...]:
    held_in, canaries = found["held_in"], found["canaries"]
    return (
        (
            "Promised",
            f"ε = {shown_epsilon(found['promised'])} at δ = {shown_delta(found['delta'])}",
        ),
        ("Measured", f"ε at least {_down(found['bound'])}, with {_confidence(found)} confidence"),
        ("Fails above", f"a measured ε of {shown_epsilon(found['limit'])}"),
        ("What the attacker saw", str(record["attack"])),
        ("Canaries", f"{canaries:g}, of which {held_in:g} were held in"),
    )


def _down(epsilon: float) -> str:
    """A lower bound on epsilon with four digits, rounded down."""
    value = Decimal(repr(epsilon))
    last = Decimal(1).scaleb(value.adjusted() - 3) if value else Decimal(1)
    return f"{float(value.quantize(last, rounding=ROUND_FLOOR)):g}"


def _confidence(found: Mapping[str, float]) -> str:
    return f"{100 * (1 - found['significance']):g}%"


def _histogram(record: Mapping[str, Any]) -> Figure:
    edges = _numbers(record, "edges")
    if not 2 <= len(edges) <= MOST_BINS + 1:
        raise ValueError(f"histogram has {len(edges)} edges")
    held_in, held_out = (
        _steps(_numbers(record, name, len(edges) - 1)) for name in ("held_in", "held_out")
    )
    x = [edges[0], *(edge for edge in edges for _ in range(2)), edges[-1]][1:-1]
    series = [
        Series("held in", x, held_in, 1, filled=True),
        Series("held out", x, held_out, 2, dash=1, filled=True),
    ]
    return figure(
        "audit-scores",
        "Scores of the canaries",
        "A canary is an example that was planted for the audit. The attack scores each one, and "
        "higher scores speak for held in. The more the two histograms overlap, the less it knows.",
        axis_of("canaries", held_in + held_out, include=[0]),
        series,
        axis_of("score of the attack", edges),
    )


def _steps(counts: list[float]) -> list[float]:
    """The outline of a histogram, from 0 at its first edge to 0 at its last edge."""
    return [0.0, *(count for count in counts for _ in range(2)), 0.0]


def _roc(roc: Mapping[str, Any], promise: Mapping[str, Any]) -> Figure:
    curves = []
    for label, record, colour, dash in (
        ("what the attack achieved", roc, 1, 0),
        ("what the promise allows", promise, 2, 1),
    ):
        fpr = _numbers(record, "fpr")
        tpr = _numbers(record, "tpr", len(fpr))
        if not fpr or not all(0 <= rate <= 1 for rate in fpr + tpr):
            raise ValueError("rates are not between 0 and 1")
        curves.append(thinned(Series(label, fpr, tpr, colour, dash)))
    curves.append(Series("blind guessing", [0, 1], [0, 1], 3, dash=2))
    return figure(
        "audit-roc",
        "The attack against the promise",
        "How often the attack recognises a canary that was held in, at each rate of false alarms. "
        "The curve is an estimate from the canaries; the verdict uses a bound that accounts for "
        "chance.",
        Axis("true-positive rate", 0, 1),
        curves,
        Axis("false-positive rate", 0, 1),
    )


def _number(record: Mapping[str, Any], name: str) -> float:
    if not is_number(record[name]) or record[name] < 0:
        raise ValueError(f"{name} is {record[name]!r}")
    return float(record[name])


def _numbers(record: Mapping[str, Any], name: str, count: int | None = None) -> list[float]:
    values = record[name]
    if not isinstance(values, list) or not all(map(is_number, values)):
        raise ValueError(f"{name} is not a list of finite numbers")
    if count is not None and len(values) != count:
        raise ValueError(f"{name} has {len(values)} numbers instead of {count}")
    return [float(value) for value in values]


def _texts(record: Mapping[str, Any], name: str) -> tuple[str, ...]:
    values: Sequence[Any] = record[name]
    if not isinstance(values, list):
        raise ValueError(f"{name} is not a list")
    return tuple(map(str, values))
