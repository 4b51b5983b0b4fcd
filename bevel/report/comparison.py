"""Writes one page that compares several runs, from their released files alone."""

import collections
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bevel.accounting.rounding import shown_delta, shown_epsilon
from bevel.errors import FixArgumentsError
from bevel.report.axis import axis_of, spoken
from bevel.report.figure import Figure, by_attempt, figure, flat, numbers_of
from bevel.report.guarantee import is_claimed, spent_of
from bevel.report.line_chart import COLOURS, DASHES, MARKERS
from bevel.report.metrics import is_accuracy, last_metrics, metric_names, shown_metric
from bevel.report.privacy_figures import EPSILON_AXIS
from bevel.report.rendering import render, write_page
from bevel.report.run_files import Line, RunFiles, read_run, valid_records
from bevel.report.settings import in_words, known, mechanism_in_words, words

if TYPE_CHECKING:
    from bevel.accounting.ledger.spent import Spent

TEMPLATE, OUTPUT = "comparison.html", "comparison.html"
MOST_DRAWN = 12  # runs with a line of their own
MOST_FIGURES = 6  # metrics with figures
MOST_SETTINGS = 100
DERIVED = ("plan.mechanism.sampler.", "plan.mechanism.strategy.")
MISSING = "-"  # for a setting that a run does not have
HEAD = ("run", "ε", "δ", "protects one", "relation", "mechanism", "steps")


@dataclasses.dataclass(frozen=True)
class _ComparedRun:
    """One run of the page, with its metrics flattened. `spent` is None if no epsilon holds."""

    label: str
    run: RunFiles
    spent: "Spent | None"
    lines: tuple[Line, ...]

    @property
    def terms(self) -> tuple[str, str, str]:
        """What must be equal for the epsilons of two runs to be comparable."""
        record = self.run.record
        delta = self.spent.delta if self.spent else record.get("delta")
        shown = known(None) if delta is None else shown_delta(delta)
        return known(record.get("unit")), words(known(record.get("relation")).lower()), shown


def write_comparison(
    run_folders: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str] = OUTPUT,
) -> Path:
    """Writes an HTML page that compares several runs, and returns its path.

    Only the released files and the ledgers are read, so the page may be shown to everyone who may
    see all of these runs. The same files give the same bytes. Runs with another unit, relation or
    delta than the first one are marked, because their epsilons cannot be compared directly.

    Args:
      run_folders: two or more folders of runs, or copies of their `released` folders.
      output: the file to write.

    Raises:
      FixArgumentsError: one of the folders is not a run folder, or the page cannot be written.
      RestoreLedgerError: the ledger of a run is damaged.
    """
    if len(run_folders) < 2:
        raise FixArgumentsError("a comparison needs two runs or more: pass their folders.")
    runs = [_compared(Path(folder)) for folder in run_folders]
    runs = [
        dataclasses.replace(one, label=label)
        for one, label in zip(runs, _labels(runs, run_folders), strict=True)
    ]
    return write_page(Path(output), render(TEMPLATE, _content(runs)), private=False)


def _compared(folder: Path) -> _ComparedRun:
    run = read_run(folder)
    with valid_records(run, "restore them from a copy, or leave this run out"):
        spent = spent_of(run)
        claimed = spent is not None and is_claimed(run, spent)
        lines = tuple(flat(line) for line in run.metrics)
        return _ComparedRun(run.name, run, spent if claimed else None, lines)


def _labels(runs: Sequence[_ComparedRun], folders: Sequence[str | os.PathLike[str]]) -> list[str]:
    """The names of runs. Runs of the same name are told apart by their folders."""
    counts = collections.Counter(one.run.name for one in runs)
    return [
        one.run.name if counts[one.run.name] == 1 else f"{one.run.name} ({Path(folder)})"
        for one, folder in zip(runs, folders, strict=True)
    ]


def _content(runs: Sequence[_ComparedRun]) -> dict[str, Any]:
    """The variables of the template."""
    names = list(dict.fromkeys(n for one in runs for n in metric_names(one.lines)))
    last = [dict(last_metrics(one.lines)) for one in runs]
    head = [*HEAD, *(words(name) for name in names[:MOST_FIGURES]), "comparable"]
    rows = []
    for one, found in zip(runs, last, strict=True):
        metrics = [shown_metric(n, found[n]) if n in found else "-" for n in names[:MOST_FIGURES]]
        rows.append([*_facts(one), *metrics, _difference(one, runs[0])])
    ledgers = collections.Counter(str(_ledger_of(one)) for one in runs)
    return {
        "labels": [one.label for one in runs],
        "head": head,
        "rows": rows,
        "numbers": [1, 2, 6, *range(len(HEAD), len(HEAD) + len(names[:MOST_FIGURES]))],
        "apart": [one.label for one in runs if one.terms != runs[0].terms],
        "unclaimed": [one.label for one in runs if one.spent is None],
        "shared_ledger": max(ledgers.values()) > 1,
        "more_metrics": max(0, len(names) - MOST_FIGURES),
        "figures": _figures(runs[:MOST_DRAWN], names[:MOST_FIGURES]),
        "not_drawn": max(0, len(runs) - MOST_DRAWN),
        "differing": _differing_settings(runs),
    }


def _ledger_of(one: _ComparedRun) -> Path:
    return (one.run.released / str(one.run.record.get("ledger") or "")).resolve()


def _facts(one: _ComparedRun) -> list[str]:
    unit, relation, delta = one.terms
    epsilon = "none" if one.spent is None else shown_epsilon(one.spent.epsilon)
    steps = f"{one.run.last_step} of {one.run.record.get('steps') or '?'}"
    mechanism = mechanism_in_words(one.run.record)
    return [one.label, epsilon, delta, unit, relation, mechanism, steps]


def _difference(one: _ComparedRun, first: _ComparedRun) -> str:
    """Which of the terms differ from those of the first run."""
    names = ("unit", "relation", "δ")
    pairs = zip(names, one.terms, first.terms, strict=True)
    differing = [name for name, own, other in pairs if own != other]
    return f"no: another {' and '.join(differing)}" if differing else "yes"


def _figures(runs: Sequence[_ComparedRun], names: Sequence[str]) -> list[Figure]:
    found = []
    for number, name in enumerate(names):
        for against in ("step", "epsilon"):
            drawn = _overlaid(f"metric-{number}-{against}", name, runs, against)
            found += [drawn] if drawn is not None else []
    return found


def _overlaid(id: str, name: str, runs: Sequence[_ComparedRun], against: str) -> Figure | None:
    """One line for each run. Lines differ in their colour, dashes and markers."""
    epsilons = against == "epsilon"
    series = []
    for number, one in enumerate(runs):
        if epsilons and one.spent is None:
            continue
        style = {
            "colour": 1 + number % COLOURS,
            "dash": number % DASHES,
            "marker": 1 + number % MARKERS,
        }
        series += by_attempt(one.lines, name, one.label, against=against, **style)
    if not series:
        return None
    x = axis_of(
        EPSILON_AXIS if epsilons else "step",
        [float(at) for line in series for at in line.x],
        include=[0],
        in_words=shown_epsilon if epsilons else spoken,
    )
    title = words(name).capitalize() if is_accuracy(name) else name
    return figure(
        id,
        f"{title} against {'ε' if epsilons else 'steps'}",
        "Further up and to the left is more for less privacy spent, at equal δ and unit."
        if epsilons and is_accuracy(name)
        else "At each checkpoint of each run.",
        axis_of(words(name), numbers_of(series)),
        series,
        x,
    )


def _differing_settings(runs: Sequence[_ComparedRun]) -> list[list[str]]:
    """The settings in which the runs differ, one row per setting and one column per run."""
    settings = [one.run.record.get("settings") or {} for one in runs]
    rows = []
    for name in dict.fromkeys(name for one in settings for name in one):
        values = [one.get(name, MISSING) for one in settings]
        if any(value != values[0] for value in values) and not name.startswith(DERIVED):
            rows.append([name, *map(in_words, values)])
    return rows[:MOST_SETTINGS]
