"""Writes a report as one self-contained HTML page."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from bevel.errors import BevelError, FixArgumentsError
from bevel.report import figures
from bevel.report.guarantee import guarantee, is_claimed, spent_of
from bevel.report.mesh_chart import layouts
from bevel.report.rounding import shown_delta, shown_epsilon
from bevel.report.run_files import RunFiles, read_run
from bevel.report.status import status
from bevel.sharding.tables import short, shown_bytes, shown_shape
from bevel.training.folder import NO_TIME, RELEASED, REPORT, write_atomically

TEMPLATE, STYLE = "page.html", "page.css"
MOST_ROWS = 200


def write_report(
    run_folder: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    include_raw: bool = False,
) -> Path:
    """Writes an HTML report of a run and returns its path.

    The public page is a function of the released files and the ledger: the same files give the same
    bytes. Neither page has scripts or loads other files, and secrets.json is never opened.

    Args:
      run_folder: the folder given to `Trainer.fit(folder=...)`, or a copy of its `released` folder.
        The run may still be running.
      output: the file to write. By default `released/report.html` in the run folder, or
        `private/report.html` with `include_raw`.
      include_raw: write the owner's page, which is *not private*: it adds times, training loss,
        clipped fraction, gradient norms and batch sizes. Its file has mode 0600.

    Raises:
      FixArgumentsError: the folder is not a run folder, has the layout of an older version, or the
        page cannot be written to `output`.
      RestoreLedgerError: the ledger is damaged, so nothing can be claimed.
    """
    run = read_run(run_folder, include_raw)
    target = Path(output or (run.private or run.released) / REPORT)
    if run.private is not None and run.released.resolve() in target.resolve().parents:
        raise FixArgumentsError(
            f"{target} is in {RELEASED}/, which may be shown to anyone, but a report with raw "
            "figures is not private: pass another output."
        )
    try:
        text = _render(run)
    except BevelError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FixArgumentsError(
            f"the files in {run.released} are not valid records of a run ({type(error).__name__}: "
            f"{error}): restore them from a copy."
        ) from error
    try:
        write_atomically(target, text, private=run.private is not None)
        if target.parent.resolve() == run.released.resolve():
            for path in (target, target.parent):
                os.utime(path, (NO_TIME, NO_TIME))  # like every released file
    except OSError as error:
        raise FixArgumentsError(
            f"the report cannot be written to {target} ({error}): pass another output."
        ) from error
    return target


def _render(run: RunFiles) -> str:
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError as error:
        raise FixArgumentsError("a report needs jinja2: run pip install 'bevel[train]'.") from error
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_read_resource(TEMPLATE)).render(_content(run))


def _read_resource(name: str) -> str:
    return (resources.files("bevel.report") / name).read_text(encoding="utf-8")


def _content(run: RunFiles) -> dict[str, Any]:
    """The variables of the template."""
    record, spent = run.record, spent_of(run)
    curve = figures.trade_off(spent) if spent and is_claimed(run, spent) else None
    pill, ending = status(run)
    raw = None if run.raw is None else figures.raw_figures(run.raw)
    return {
        "style": _read_resource(STYLE),
        "name": run.name,
        "status": pill,
        "ending": ending,
        "guarantee": guarantee(run, spent),
        "headline": _headline(run, spent),
        "epsilon": figures.epsilon_over_steps(run, spent),
        "trade_off": curve and curve[0],
        "rates": curve[1] if curve else [],
        "checkpoints": len(run.metrics),
        "evaluation": figures.evaluation(run),
        "last_metrics": figures.last_metrics(run),
        "mesh": _mesh_of(record),
        "layouts": layouts(record.get("arrays") or [], _mesh_of(record)),
        "arrays": _array_rows(record.get("arrays") or []),
        "more_arrays": max(0, len(record.get("arrays") or []) - MOST_ROWS),
        "collectives": _collective_rows(record.get("collectives")),
        "plan": str((record.get("plan") or {}).get("description") or "").strip(),
        "what_ran": _what_ran(record),
        "settings": [(name, _shown_value(v)) for name, v in (record.get("settings") or {}).items()],
        "changes": _change_rows(record.get("changes") or []),
        "versions": [
            (n, v or "not installed") for n, v in sorted((record.get("versions") or {}).items())
        ],
        "raw": raw,
        "raw_steps": len(run.raw or ()),
        "times": None if run.private_record is None else _times(run),
        "bytes": shown_bytes,
    }


def _headline(run: RunFiles, spent: Any) -> list[tuple[str, str]]:
    record = run.record
    pairs = []
    if spent is not None and (is_claimed(run, spent) or not spent.runs):
        pairs += [("ε spent", shown_epsilon(spent.epsilon)), ("δ", shown_delta(spent.delta))]
    else:
        pairs.append(("guarantee", "none"))
    pairs.append(("protects one", str(record.get("unit") or "not recorded")))
    for name, value in figures.last_metrics(run):
        if name.lower().endswith(("accuracy", "acc")) and 0 <= float(value) <= 1:
            pairs.append((name.replace("_", " "), f"{100 * float(value):.3g} %"))
            break
    pairs.append(("steps", f"{run.last_step} of {record.get('steps') or '?'}"))
    return pairs


def _mesh_of(record: Mapping[str, Any]) -> dict[str, int]:
    """The mesh axes and their sizes. Empty for a run without a mesh."""
    mesh = (record.get("surroundings") or {}).get("mesh") or {}
    return {str(name): int(size) for name, (size, _) in mesh.items()}


def _array_rows(arrays: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    def cell(row: Mapping[str, Any], name: str, show: Callable[[Any], str]) -> str:
        return "?" if row.get(name) is None else show(row[name])

    return [
        [
            str(row.get("path") or "(root)"),
            f"{row.get('dtype', '')} {cell(row, 'shape', shown_shape)}",
            str(row.get("spec") or "-"),
            cell(row, "shard_shape", shown_shape),
            cell(row, "bytes_per_device", shown_bytes),
            cell(row, "replication", "{:g}".format),
        ]
        for row in arrays[:MOST_ROWS]
    ]


def _collective_rows(found: Sequence[Mapping[str, Any]] | None) -> list[list[str]] | None:
    """One row per collective. None if the step was not inspected."""
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


def _what_ran(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What ran. Facts that were not recorded are listed as such."""
    data, around = record.get("data") or {}, record.get("surroundings") or {}
    size, padded = data.get("expected_batch_size"), data.get("padded_sizes")
    return [
        ("Plan", _known((record.get("plan") or {}).get("fingerprint"))),
        (
            "Commit",
            record.get("commit") or "not recorded: the run was not started in a git checkout",
        ),
        ("Records", _known(data.get("records"))),
        ("Expected batch size", _known(size if size is None else f"{size:g}")),
        ("Batches are padded to", _known(", ".join(map(str, padded or [])))),
        ("Device", _known(around.get("device"))),
        ("Processes", _known(around.get("processes"))),
        ("XLA flags", str(around.get("flags") or "none")),
    ]


def _change_rows(changes: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    return [
        [_known(one.get("step")), _known(one.get("name"))]
        + [_shown_value(one.get(end)) for end in ("from", "to")]
        for one in changes
    ]


def _times(run: RunFiles) -> list[tuple[str, str]]:
    """Times and speed of the run, for the owner's page only."""
    record = run.private_record or {}

    def seconds(name: str) -> str:
        value = record.get(name)
        return f"{value:.3f} s" if figures.is_number(value) else "not recorded"

    rates = [r for row in run.raw or () if figures.is_number(r := row.get("examples_per_second"))]
    return [
        ("Began", _known(record.get("started"))),
        ("Resumed", str(record.get("resumed") or "no")),
        ("Ended", str(record.get("finished") or "not yet")),
        ("Steps taken", _known(record.get("steps_taken"))),
        ("Time since it was last started", seconds("seconds")),
        ("Of this, waiting for data", seconds("seconds_waiting_for_data")),
        ("Examples per second, last", f"{rates[-1]:.4g}" if rates else "not recorded"),
        ("Programs compiled", _known(record.get("programs_compiled"))),
        ("Program", _known(record.get("program"))),
    ]


def _known(value: Any) -> str:
    return "not recorded" if value in (None, "") else str(value)


def _shown_value(value: Any) -> str:
    if value is None:
        return "not set"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
