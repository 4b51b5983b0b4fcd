"""`bevel train CONFIG.toml`: trains a private model from a config file."""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bevel.cli.config import Config
from bevel.cli.json_events import JsonEvents
from bevel.cli.parsing import config_and_overrides, taken
from bevel.training.progress import Progress
from bevel.training.terminal_progress import PlainProgress, progress_of

ABOUT = """Train from a config file, or resume a run.

You can kill the command at any time and start it again, even on another mesh.
It resumes from the last checkpoint, and nothing is spent twice. Ctrl-C saves
the state and exits with code 130. A run does not resume with other data or
another plan. A new learning rate or loss needs --accept.

  --dry-run     say what will happen (privacy, memory, time, disk, folder), and
                change nothing
  --quiet       print errors and the last line only
  --json        print one JSON object per line: start, checkpoint and end, with
                released values only; progress goes to standard error
  --accept KEY  go on although this key has changed, as in
                --accept optimizer.learning_rate

A model or data of your own ([model] module, [data] source) is a Python file,
which this command runs, with --dry-run too: use files that you trust.

examples:
  bevel train examples/digits.toml
  bevel train examples/digits.toml --dry-run
  bevel train examples/digits.toml --plan.epsilon=2 --run.folder=runs/two
  bevel train examples/digits.toml --json --quiet > events.jsonl
  bevel launch --processes 2 -- bevel train examples/digits.toml
"""


def main(arguments: Sequence[str]) -> int:
    words = [re.sub("^--accept(?==|$)", "--run.accept", word) for word in arguments]
    dry, words = taken("--dry-run", words)
    if dry:
        from bevel.cli import dry_run

        return dry_run.main(words, ABOUT)
    quiet, words = taken("--quiet", words)
    wants_json, words = taken("--json", words)
    _train(config_and_overrides("train", ABOUT, words), quiet, wants_json)
    return 0


def _train(config: Config, quiet: bool, wants_json: bool) -> None:
    """Trains a config to its end. The first process shows progress and writes the report."""
    from bevel.processes import join

    process = join()
    shown = progress(quiet or process.index > 0, wants_json)
    with shown.working("loading JAX and Orbax"):
        from bevel.cli.job import Job, use_cpu_devices
        from bevel.models.evaluation import described
        from bevel.report import write_report
        from bevel.training.process_agreement import barrier

        if process.count == 1 and config.mesh.cpu_devices is not None:
            use_cpu_devices(config.mesh.cpu_devices)
    job = Job(config)
    build(job, shown)
    events = JsonEvents(shown) if wants_json and process.index == 0 else None
    state = job.fit(folder=config.run.folder, progress=events or shown)
    metrics = job.final_metrics(state)
    if process.index == 0:
        with shown.working("writing the report"):
            report = write_report(config.run.folder)
        last = f"{described(metrics)} after {int(state.step)} steps; report: {report}"
        if events is None:
            print(last)
        else:
            events.write("end", **_ending(Path(config.run.folder)), report=str(report))
            shown.note(last)
    barrier("report")  # at exit, processes wait for each other only for a limited time


def progress(quiet: bool, wants_json: bool) -> Progress:
    """How a command shows what it does: on standard error if standard output has JSON."""
    if quiet:
        return Progress()
    if not wants_json:
        return progress_of(None)
    # Two things that are written to one terminal must not overwrite each other.
    return PlainProgress(sys.stderr) if sys.stdout.isatty() else progress_of(None, sys.stderr)


def build(job: Any, shown: Progress) -> None:
    """Reads the data and makes the plan, which may take a while."""
    with shown.working("reading the data"):
        _ = job.data
    if job.config.plan.epsilon is not None:
        with shown.working(f"calibrating the noise to epsilon {job.config.plan.epsilon:g}"):
            _ = job.plan


def _ending(folder: Path) -> dict[str, Any]:
    """Why the run ended, and the last metrics that it released."""
    from bevel.training.folder import METRICS, RELEASED, RUN

    released = folder / RELEASED
    record = json.loads((released / RUN).read_text())
    lines = (released / METRICS).read_text().splitlines()
    return {"status": record.get("ending")} | (json.loads(lines[-1]) if lines else {})
