"""The metrics of a model that was trained without privacy, to compare with.

No epsilon covers these numbers: they follow from the training data without noise. The owner decides
whether the public page shows them.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from bevel.errors import FixArgumentsError
from bevel.report.figure import is_number
from bevel.report.metrics import headline_metric, last_metrics, metric_names
from bevel.report.run_files import RunFiles, read_run
from bevel.report.settings import in_words

BaselineLike = Mapping[str, float] | float | str | os.PathLike[str]
NOT_COVERED = (
    "The baseline is a model that was trained without privacy. Its numbers follow from the "
    "training data without noise, and the ε on this page does not cover them."
)


@dataclasses.dataclass(frozen=True)
class Baseline:
    """The metrics of the non-private model that the private run has too, by name."""

    metrics: Mapping[str, float]

    def value(self, name: str) -> float | None:
        return self.metrics.get(name)


NO_BASELINE = Baseline({})


def read_baseline(given: BaselineLike | None, run: RunFiles) -> Baseline:
    """The baseline of a run, from metrics, one number, or the folder of a non-private run.

    A number is the baseline of the metric in the headline of the page.

    Raises:
      FixArgumentsError: no metric of the baseline is a metric of the run, or the folder is that of
        a private run.
    """
    if given is None:
        return NO_BASELINE
    names = metric_names(run.metrics)
    if isinstance(given, Mapping):
        found = _numbers(given)
    elif isinstance(given, str | os.PathLike):
        found = _metrics_of(given)
    else:
        found = _numbers({_headline_of(run, names): given})
    shared = {name: value for name, value in found.items() if name in names}
    if not shared:
        raise FixArgumentsError(
            f"the baseline has the metrics {_listed(list(found))}, but the run {run.name!r} has "
            f"{_listed(names)}. Pass metrics of the same names, such as {{'test_accuracy': 0.97}}."
        )
    return Baseline(shared)


def _headline_of(run: RunFiles, names: Sequence[str]) -> str:
    name = headline_metric(names)
    if name is None:
        raise FixArgumentsError(
            f"the run {run.name!r} has no metrics that a baseline could be compared with: leave "
            "the baseline out, or train with evaluate=."
        )
    return name


def _numbers(metrics: Mapping[Any, Any]) -> dict[str, float]:
    for name, value in metrics.items():
        if not is_number(value):
            raise FixArgumentsError(
                f"the baseline of {name!r} is {value!r}: pass a finite number, such as 0.97."
            )
    return {str(name): float(value) for name, value in metrics.items()}


def _metrics_of(folder: str | os.PathLike[str]) -> dict[str, float]:
    """The last metrics of a run that had no noise."""
    run = read_run(folder)
    noise = (run.record.get("settings") or {}).get("plan.mechanism.noise_multiplier")
    if noise:
        raise FixArgumentsError(
            f"{folder} is a private run, with the noise multiplier {in_words(noise)}, and not a "
            "non-private baseline. To compare private runs, pass their folders to bevel report."
        )
    return dict(last_metrics(run.metrics))


def _listed(names: Sequence[str]) -> str:
    return (
        ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "") if names else "none"
    )
