"""Options of a run: checkpoints, ledger, resuming and speed."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from bevel.accounting import Budget
from bevel.accounting.arguments import check_budget
from bevel.checks import flag, instance, path, text, whole_number
from bevel.training.identity import check_accept
from bevel.training.progress import Progress
from bevel.training.tuning_record import UNKNOWN, Tuning


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """Options of a run: checkpoints, ledger, resuming and speed.

    What is released, and when:
      checkpoint_every: steps between two checkpoints. Evaluation and callbacks run at checkpoints.
      budget: what all runs of the ledger together may spend. The run ends before it would exceed
        the budget. Default: the plan's budget.
      delta: the delta at which epsilon is stated. Default: the budget's delta.

    Where files are kept:
      ledger: the path of the ledger. Default: `released/ledger.jsonl` in the run folder. Use one
        ledger for all runs on the same data set.
      anchor: a small file that holds the hash of the ledger's last line. Put it on other storage
        than the ledger: it detects a ledger that was rolled back together with the run folder.
      name: the name of the run in the ledger. Default: the name of the run folder.
      keep: the number of newest checkpoints to keep.
      keep_period: also keep checkpoints whose step is a multiple of this.
      tensorboard: whether to also write TensorBoard events, if tensorboardX is installed.

    What the record of the run says:
      tuning: 'public' if the settings were chosen by theory (`bevel plan`) or on data that is not
        protected, so that choosing them cost nothing. Default: 'unknown'; the report then says that
        epsilon excludes tuning. `bevel.tuning` sets it for its runs.

    Resuming:
      settings: values by name. They are recorded, and a run refuses to resume with other values.
      accept: names of what may differ from the start of the run: 'optimizer' (its learning rate),
        'loss', 'ema_decay', or a name in `settings`.

    Speed only:
      ahead: the number of batches to prefetch.
      compilations: the number of sizes that batches are padded to, each with a compiled program.

    progress: False shows no progress; True and None show it on standard output. A `Progress` of
      your own is told about it instead.
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
    tuning: Tuning | str = UNKNOWN
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    accept: Sequence[str] = ()
    ahead: int = 2
    compilations: int = 3
    progress: bool | Progress | None = None

    def __post_init__(self) -> None:
        counts = ["checkpoint_every", "keep"]
        for name in counts + ["keep_period"] * (self.keep_period is not None):
            whole_number(name, getattr(self, name))
        whole_number("ahead", self.ahead, 1, 2**10, "Batches that are read ahead stay in memory.")
        whole_number("compilations", self.compilations, 1, 100, "Each is a compiled program.")
        hint = "bevel.accounting.Budget(epsilon, delta)"
        instance("budget", self.budget, Budget | None, hint)
        if self.delta is not None:
            check_budget(delta=self.delta)
        if self.name is not None:
            text("name", self.name)
        for name in ("ledger", "anchor"):
            if getattr(self, name) is not None:
                path(name, getattr(self, name))
        flag("tensorboard", self.tensorboard)
        instance("settings", self.settings, Mapping, "a dict of names and values")
        for name in self.settings:
            text("a name in settings", name)
        if not isinstance(self.progress, Progress | None):
            hint = "True, False, or a bevel.training.Progress"
            instance("progress", self.progress, bool, hint)
        check_accept(self.accept)
        object.__setattr__(self, "tuning", Tuning.of(self.tuning))
