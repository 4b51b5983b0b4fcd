"""How a run is kept."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from bevel.accounting import Budget
from bevel.accounting.arguments import check_budget
from bevel.checks import whole_number
from bevel.errors import FixArgumentsError
from bevel.training.identity import check_accept


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """How a run is kept.

    Changes what is released, and when:
      checkpoint_every: steps between two checkpoints. Evaluation and callbacks run at checkpoints.
      budget: what all runs of the ledger may spend; by default the plan's. A run ends before it
        would be exceeded.
      delta: at which epsilon is stated; by default the budget's.

    Changes where things are kept:
      ledger: by default `released/ledger.jsonl` in the run's folder. Runs on one data set share
        one.
      anchor: a small file, on other storage than the ledger, that holds the hash of the ledger's
        last line. It detects a ledger that was rolled back together with the folder.
      name: of the run in the ledger; by default the folder's.
      keep, keep_period: the newest checkpoints, and every one of a step that is a multiple.
      tensorboard: events beside the JSON lines, where tensorboardX is installed.

    Changes what a run may go on with:
      settings: values by names, recorded and shown when the run goes on with other ones.
      accept: names of what may differ from when the run was begun: 'optimizer' (its learning rate),
        'loss', 'ema_decay', or a name in `settings`.

    Changes speed only:
      ahead: batches that are read while a step runs.
      compilations: sizes that batches are padded to, each with a program compiled ahead.

    progress: whether to show it; None shows it.
    """

    checkpoint_every: int = 100
    budget: Budget | None = None
    delta: float | None = None
    ledger: str | os.PathLike[str] | None = None
    anchor: str | os.PathLike[str] | None = None
    name: str | None = None
    keep: int = 3
    keep_period: int | None = None
    tensorboard: bool = True
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    accept: Sequence[str] = ()
    ahead: int = 2
    compilations: int = 3
    progress: bool | None = None

    def __post_init__(self) -> None:
        whole = ["checkpoint_every", "keep", "ahead", "compilations"]
        for name in whole + ["keep_period"] * (self.keep_period is not None):
            whole_number(name, getattr(self, name))
        if self.budget is not None and not isinstance(self.budget, Budget):
            raise FixArgumentsError(
                f"budget={self.budget!r}: give bevel.accounting.Budget(epsilon, delta)."
            )
        if self.delta is not None:
            check_budget(delta=self.delta)
        if self.name is not None and (not isinstance(self.name, str) or not self.name):
            raise FixArgumentsError(f"name={self.name!r}: give a text that is not empty.")
        for name in ("ledger", "anchor"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str | os.PathLike):
                raise FixArgumentsError(f"{name}={value!r}: give a path.")
        if not isinstance(self.settings, Mapping):
            raise FixArgumentsError(f"settings={self.settings!r}: give a dict of names and values.")
        check_accept(self.accept)
