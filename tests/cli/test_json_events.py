"""--json writes what is released, and nothing else."""

import io
import json

import pytest

from bevel.accounting import Budget
from bevel.cli.json_events import JsonEvents
from bevel.training.terminal_progress import PlainProgress

METRICS = {"step": 4, "epsilon": float("inf"), "delta": 1e-5, "attempt": 0, "test_accuracy": 0.9}


@pytest.mark.parametrize("budget", [Budget(3, 1e-5), None])
def test_events_are_lines_of_json_and_people_read_the_rest(budget):
    events, shown = io.StringIO(), io.StringIO()
    progress = JsonEvents(PlainProgress(shown), events)
    with progress.working("compiling"):
        progress.note("resuming after 3 of 8 steps")
    progress.begin(3, 8, budget)
    progress.advance(4)
    progress.checkpoint(METRICS)
    progress.raw({"loss": 0.52})
    progress.warn("the loss is high")
    progress.end()
    progress.write("end", status="complete")
    start, checkpoint, end = map(json.loads, events.getvalue().splitlines())
    terms = {"epsilon": 3.0, "delta": 1e-5} if budget else {"epsilon": None, "delta": None}
    assert start == {"event": "start", "steps": 8} | terms
    assert checkpoint == {"event": "checkpoint"} | METRICS | {"epsilon": None}
    assert end == {"event": "end", "status": "complete"}
    assert [line.split()[0] for line in shown.getvalue().splitlines()] == [
        "compiling", "resuming", "step", "warning",
    ]  # fmt: skip
