"""Joins the parts of a report to one HTML page that needs nothing from anywhere else."""

import os
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from bevel.errors import FixArgumentsError
from bevel.report import figures
from bevel.report.guarantee import ending, guarantee, shown_epsilon, spent_of
from bevel.report.mesh_chart import layouts
from bevel.report.run_files import RunFiles, read_run
from bevel.sharding.table import short, shown_bytes, shown_shape

NAME, NOT_PRIVATE = "report.html", "report_not_private.html"
TEMPLATE, STYLE = "page.html", "page.css"
MOST_ROWS = 200


def write_report(
    run_folder: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    include_raw: bool = False,
) -> Path:
    """Writes one HTML page about a run, and returns its path.

    Args:
      run_folder: of `Trainer.fit(folder=...)`. The run may be going on, or may have been killed.
      output: by default `report.html` in the run's folder; with `include_raw`,
        `report_not_private.html`, so that the two are never mistaken for one another.
      include_raw: also shows what is *not private*: training loss, clipped fraction, gradient
        norms and batch sizes. The file is then for its owner only.

    The page has no scripts and asks for no other file. secrets.json is never opened, and raw.jsonl
    only with `include_raw`. What a run does not have is said in words.

    Raises:
      FixArgumentsError: the folder is not that of a run, or the page cannot be written.
      RestoreLedgerError: the ledger is damaged, so that nothing can be claimed.
    """
    run = read_run(run_folder, include_raw)
    target = Path(output or run.folder / (NOT_PRIVATE if include_raw else NAME))
    text = rendered(run)
    beside = target.with_name(f".{target.name}")
    try:
        beside.unlink(missing_ok=True)
        mode = 0o600 if include_raw else 0o644
        opened = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(opened, "w", encoding="utf-8") as file:
            file.write(text)
        beside.replace(target)
    except OSError as error:
        raise FixArgumentsError(
            f"the report cannot be written to {target} ({error}): give another output."
        ) from error
    return target


def rendered(run: RunFiles) -> str:
    """The page as text."""
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError as error:
        raise FixArgumentsError(
            "a report needs jinja2: install it, or bevel[train], which has it."
        ) from error
    surroundings = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return surroundings.from_string(packaged(TEMPLATE)).render(content(run))


def packaged(name: str) -> str:
    return (resources.files("bevel.report") / name).read_text(encoding="utf-8")


def content(run: RunFiles) -> dict[str, Any]:
    """Everything that the template puts into words."""
    record, spent = run.record, spent_of(run)
    curve = figures.trade_off(spent)
    raw = None if run.raw is None else figures.raw_figures(run.raw)
    return {
        "style": packaged(STYLE),
        "name": run.name,
        "status": record.get("status") or "not recorded",
        "ending": ending(run),
        "guarantee": guarantee(run, spent),
        "headline": headline(run, spent),
        "epsilon": figures.epsilon_over_steps(run, spent),
        "trade_off": curve and curve[0],
        "rates": curve[1] if curve else [],
        "checkpoints": len(run.metrics),
        "evaluation": figures.evaluation(run),
        "last_metrics": figures.last_metrics(run),
        "mesh": mesh_of(record),
        "layouts": layouts(record.get("arrays") or [], mesh_of(record)),
        "arrays": array_rows(record.get("arrays") or []),
        "more_arrays": max(0, len(record.get("arrays") or []) - MOST_ROWS),
        "collectives": collective_rows(record.get("collectives")),
        "plan": str((record.get("plan") or {}).get("description") or "").strip(),
        "what_ran": what_ran(record),
        "versions": [
            (n, v or "not installed") for n, v in sorted((record.get("versions") or {}).items())
        ],
        "raw": raw,
        "raw_steps": len(run.raw or ()),
        "bytes": shown_bytes,
    }


def headline(run: RunFiles, spent: Any) -> list[tuple[str, str]]:
    """The few figures at the top."""
    record = run.record
    found = []
    if spent is not None:
        found += [("ε spent", shown_epsilon(spent.epsilon)), ("δ", f"{spent.delta:g}")]
    found.append(("protects one", str(record.get("unit") or "not recorded")))
    accuracies = [pair for pair in figures.last_metrics(run) if "acc" in pair[0].lower()]
    found += [(name.replace("_", " "), f"{100 * float(v):.3g} %") for name, v in accuracies[:1]]
    taken = run.metrics[-1]["step"] if run.metrics else record.get("steps_taken") or 0
    found.append(("steps", f"{taken} of {record.get('steps') or '?'}"))
    return found


def mesh_of(record: Mapping[str, Any]) -> dict[str, int]:
    """Axes and their sizes; empty for a run on one device."""
    mesh = (record.get("surroundings") or {}).get("mesh") or {}
    return {str(name): int(size) for name, (size, _) in mesh.items()}


def array_rows(arrays: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    def size(row: Mapping[str, Any], name: str) -> str:
        return "?" if row.get(name) is None else shown_bytes(row[name])

    def shape(row: Mapping[str, Any], name: str) -> str:
        return "?" if row.get(name) is None else shown_shape(row[name])

    def copies(row: Mapping[str, Any]) -> str:
        return "?" if row.get("replication") is None else f"{row['replication']:g}"

    return [
        [
            str(row.get("path") or "(the whole)"),
            f"{row.get('dtype', '')} {shape(row, 'shape')}",
            str(row.get("spec") or "-"),
            shape(row, "shard_shape"),
            size(row, "bytes_per_device"),
            copies(row),
        ]
        for row in arrays[:MOST_ROWS]
    ]


def collective_rows(found: Sequence[Mapping[str, Any]] | None) -> list[list[str]] | None:
    """One row for each; None where the step was not inspected."""
    if found is None:
        return None
    rows = []
    for one in found:
        axes, size = one.get("axes"), one.get("group_size")
        over = f"groups of {size or '?'}" if axes is None else ", ".join(axes) or "none"
        shapes = " ".join(f"[{','.join(map(str, shape))}]" for shape in one.get("shapes") or ())
        sent = one.get("sent")
        rows.append(
            [
                str(one.get("kind")),
                f"{one.get('dtype', '')}{shapes}",
                short(one.get("bytes") or 0, "B"),
                over,
                str(one.get("times")),
                "?" if sent is None else short(sent * (one.get("times") or 0), "B"),
                str(one.get("line") or "-"),
                str(one.get("operation") or "-").split("/")[-1],
            ]
        )
    return rows


def what_ran(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Facts about the run, those that were not recorded among them."""
    data, around = record.get("data") or {}, record.get("surroundings") or {}

    def known(value: Any) -> str:
        return "not recorded" if value in (None, "") else str(value)

    size = data.get("expected_batch_size")
    return [
        ("Began", known(record.get("started"))),
        ("Taken up again", record.get("resumed") or "no"),
        ("Ended", known(record.get("finished")) if record.get("finished") else "not yet"),
        ("Commit", record.get("commit") or "not recorded: it was not started in a git checkout"),
        ("Plan", known((record.get("plan") or {}).get("fingerprint"))),
        ("Program", known(record.get("program"))),
        ("Records", known(data.get("records"))),
        ("Expected batch size", known(size if size is None else f"{size:g}")),
        ("Device", known(around.get("device"))),
        ("Processes", known(around.get("processes"))),
        ("XLA flags", around.get("flags") or "none"),
    ]
