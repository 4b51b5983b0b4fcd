"""Writes the report of one run as a self-contained HTML page."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bevel.accounting.rounding import shown_delta, shown_epsilon
from bevel.errors import FixArgumentsError
from bevel.report.audit import AuditReport, read_audit
from bevel.report.baseline import NOT_COVERED, Baseline, BaselineLike, read_baseline
from bevel.report.guarantee import guarantee, is_claimed, spent_of
from bevel.report.mesh_chart import layouts
from bevel.report.metrics import (
    evaluation,
    headline_metric,
    last_metrics,
    shown_metric,
    without_figure,
)
from bevel.report.owner import dropped_examples, times, where_time_went
from bevel.report.owner_figures import owner_figures
from bevel.report.placement import MOST_ROWS, array_rows, collective_rows, mesh_of
from bevel.report.privacy_figures import epsilon_over_steps, trade_off
from bevel.report.rendering import render, write_page
from bevel.report.run_files import RunFiles, read_run, valid_records
from bevel.report.settings import change_rows, known, setting_tables, shown_value
from bevel.report.status import status
from bevel.sharding.tables import shown_bytes
from bevel.training.folder import RELEASED, REPORT

if TYPE_CHECKING:
    from bevel.accounting.ledger.spent import Spent

TEMPLATE = "page.html"


def write_report(
    run_folder: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    include_raw: bool = False,
    *,
    baseline: BaselineLike | None = None,
    publish_baseline: bool = False,
    audit: str | os.PathLike[str] | None = None,
) -> Path:
    """Writes an HTML report of a run and returns its path.

    The public page is a function of the released files, the ledger and a published baseline: the
    same ones give the same bytes. Neither page has scripts or loads other files, and secrets.json
    is never opened.

    Args:
      run_folder: the folder given to `Trainer.fit(folder=...)`, or a copy of its `released` folder.
        The run may still be running.
      output: the file to write. By default `released/report.html` in the run folder, or
        `private/report.html` with `include_raw`.
      include_raw: write the owner's page, which is *not private*: it adds times, training loss,
        clipped fraction, gradient norms, batch sizes and the audit. Its file has mode 0600.
      baseline: the metrics of a model that was trained without privacy, which the page shows next
        to those of the run: a mapping from names to numbers, one number for the metric in the
        headline, or the folder of a non-private run. No epsilon covers them.
      publish_baseline: show the baseline on the public page too. Without it, only the owner's page
        may have a baseline.
      audit: the folder of another run whose audit the owner's page shows. By default that of this
        run, if it has one.

    Raises:
      FixArgumentsError: the folder is not a run folder, has the layout of an older version, or the
        page cannot be written to `output`; the baseline or the audit cannot be read, or may not be
        on this page.
      RestoreLedgerError: the ledger is damaged, so nothing can be claimed.
    """
    _check_options(include_raw, baseline, publish_baseline, audit)
    run = read_run(run_folder, include_raw)
    target = Path(output or (run.private or run.released) / REPORT)
    if run.private is not None and run.released.resolve() in target.resolve().parents:
        raise FixArgumentsError(
            f"{target} is in {RELEASED}/, which may be shown to anyone, but a report with raw "
            "figures is not private: pass another output."
        )
    compared = read_baseline(baseline, run)
    audited = read_audit(run.private, audit) if include_raw else None
    with valid_records(run, "restore them from a copy"):
        text = render(TEMPLATE, _content(run, compared, audited))
    return write_page(target, text, private=run.private is not None, released=run.released)


def _check_options(
    include_raw: bool,
    baseline: BaselineLike | None,
    publish_baseline: bool,
    audit: str | os.PathLike[str] | None,
) -> None:
    if baseline is not None and not include_raw and not publish_baseline:
        raise FixArgumentsError(
            "a non-private baseline follows from the training data without noise, and no epsilon "
            "covers it. Pass publish_baseline=True to show it to everyone, or include_raw=True to "
            "write the owner's page."
        )
    if publish_baseline and baseline is None:
        raise FixArgumentsError("publish_baseline=True needs a baseline: pass baseline=...")
    if audit is not None and not include_raw:
        raise FixArgumentsError(
            "an audit is on the owner's page only, because its scores are not private: pass "
            "include_raw=True."
        )


def _content(run: RunFiles, baseline: Baseline, audit: AuditReport | None) -> dict[str, Any]:
    """The variables of the template."""
    record, spent = run.record, spent_of(run)
    claimed = spent is not None and is_claimed(run, spent)
    curve = trade_off(spent) if claimed else None
    pill, ending = status(run)
    last = last_metrics(run.metrics)
    arrays, collectives = record.get("arrays") or [], record.get("collectives")
    return {
        "name": run.name,
        "status": pill,
        "ending": ending,
        "guarantee": guarantee(run, spent),
        "headline": _headline(run, spent, claimed, last, baseline),
        "epsilon": epsilon_over_steps(run, spent),
        "trade_off": curve and curve[0],
        "rates": curve[1] if curve else [],
        "checkpoints": len(run.metrics),
        "evaluation": evaluation(run, baseline, with_epsilon=claimed),
        "last_metrics": _metric_rows(last, baseline),
        "without_figure": without_figure([name for name, _ in last]),
        "baseline_note": NOT_COVERED if baseline.metrics else "",
        "mesh": mesh_of(record),
        "layouts": layouts(arrays, mesh_of(record)),
        "arrays": array_rows(arrays),
        "more_arrays": max(0, len(arrays) - MOST_ROWS),
        "collectives": collective_rows(collectives),
        "more_collectives": max(0, len(collectives or []) - MOST_ROWS),
        "setting_tables": setting_tables(record),
        "settings": [(name, shown_value(v)) for name, v in (record.get("settings") or {}).items()],
        "changes": change_rows(record.get("changes") or []),
        "what_ran": _what_ran(record),
        "versions": [
            (n, v or "not installed") for n, v in sorted((record.get("versions") or {}).items())
        ],
        "owner": None if run.private is None else _owner_content(run, audit),
        "bytes": shown_bytes,
    }


def _owner_content(run: RunFiles, audit: AuditReport | None) -> dict[str, Any]:
    """What only the owner's page has."""
    rows = run.raw or ()
    return {
        "figures": owner_figures(rows),
        "steps": len(rows),
        "dropped": dropped_examples(rows),
        "times": times(run),
        "time": where_time_went(run),
        "audit": audit,
    }


def _headline(
    run: RunFiles,
    spent: "Spent | None",
    claimed: bool,
    last: list[tuple[str, float]],
    baseline: Baseline,
) -> list[tuple[str, str]]:
    pairs = []
    if spent is not None and (claimed or not spent.runs):
        pairs += [("ε spent", shown_epsilon(spent.epsilon)), ("δ", shown_delta(spent.delta))]
    else:
        pairs.append(("guarantee", "none"))
    pairs.append(("protects one", str(run.record.get("unit") or "not recorded")))
    name = headline_metric([name for name, _ in last])
    if name is not None:
        label = name.replace("_", " ")
        pairs.append((label, shown_metric(name, dict(last)[name])))
        if (value := baseline.value(name)) is not None:
            pairs.append((f"{label} without privacy", shown_metric(name, value)))
    pairs.append(("steps", f"{run.last_step} of {run.record.get('steps') or '?'}"))
    return pairs


def _metric_rows(last: list[tuple[str, float]], baseline: Baseline) -> list[list[str]]:
    """Each metric with its last value and, if there is a baseline, the value without privacy."""
    rows = [[name, f"{value:.5g}"] for name, value in last]
    if baseline.metrics:
        for row in rows:
            value = baseline.value(row[0])
            row.append("-" if value is None else f"{value:.5g}")
    return rows


def _what_ran(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What ran. Facts that were not recorded are listed as such."""
    around = record.get("surroundings") or {}
    commit = record.get("commit") or "not recorded: the run was not started in a git checkout"
    return [
        ("Fingerprint of the plan", known((record.get("plan") or {}).get("fingerprint"))),
        ("Commit", str(commit)),
        ("Device", known(around.get("device"))),
        ("Processes", known(around.get("processes"))),
        ("XLA flags", str(around.get("flags") or "none")),
    ]
