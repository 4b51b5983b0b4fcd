"""`--json`: what a run releases, as one JSON object per line.

| event        | fields                                                                       |
| ------------ | ---------------------------------------------------------------------------- |
| `start`      | `steps`, and `epsilon` and `delta` of the budget, null if there is none      |
| `checkpoint` | a line of released/metrics.jsonl: `step`, `epsilon`, `delta`, test metrics   |
| `end`        | the last such line, with `status` and the path of the `report`               |

Everything comes from public settings and from what was charged and released. Raw metrics, warnings
about them and the pace of the steps are not written, and a run that is interrupted has no `end`.
"""

import contextlib
import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TextIO

from bevel.training.progress import Progress

if TYPE_CHECKING:
    from bevel.accounting import Budget


class JsonEvents(Progress):
    """Writes the events of a run to `file`, and passes everything on to another display."""

    def __init__(self, shown: Progress, file: TextIO | None = None) -> None:
        self._shown, self._file = shown, file or sys.stdout

    def write(self, event: str, **fields: Any) -> None:
        from bevel.training.metrics_files import to_json

        print(json.dumps({"event": event} | to_json(fields)), file=self._file, flush=True)

    def begin(self, step: int, steps: int, budget: "Budget | None") -> None:
        terms = {"epsilon": budget and budget.epsilon, "delta": budget and budget.delta}
        self.write("start", steps=steps, **terms)
        self._shown.begin(step, steps, budget)

    def checkpoint(self, metrics: Mapping[str, Any]) -> None:
        self.write("checkpoint", **metrics)
        self._shown.checkpoint(metrics)

    def working(self, what: str) -> contextlib.AbstractContextManager[None]:
        return self._shown.working(what)

    def note(self, text: str) -> None:
        self._shown.note(text)

    def advance(self, step: int) -> None:
        self._shown.advance(step)

    def raw(self, metrics: Mapping[str, Any]) -> None:
        self._shown.raw(metrics)

    def warn(self, text: str) -> None:
        self._shown.warn(text)

    def end(self) -> None:
        self._shown.end()
