"""`load`: the parameters and settings of a run, from the half of its folder that anyone may see."""

import collections
import dataclasses
import os
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orbax.checkpoint as ocp

from bevel.errors import FixArgumentsError, RestoreCheckpointError
from bevel.training.array_files import array_handler
from bevel.training.checkpoint_metadata import numbered_folders, read_json
from bevel.training.folder import CHECKPOINT, CHECKPOINTS, METRICS, RELEASED, RUN, SECRETS
from bevel.training.metrics_files import read_lines
from bevel.training.named_arrays import arranged

PyTree = Any
RESTORE = "restore it from a backup, or load another step."


@dataclasses.dataclass(frozen=True)
class LoadedRun:
    """What a run has released.

    Attributes:
      params: the parameters to use: their average if the run keeps one, otherwise those of the last
        step. Arrays are NumPy arrays with the dtypes of the parameters.
      is_average: whether `params` is the average (`Trainer(ema_decay=...)`).
      last_params: the parameters of the last step.
      step: the number of steps that they have taken.
      metrics: the line of that step in metrics.jsonl, with epsilon and the results of `evaluate`.
        Empty if the run ended before it was written.
      settings: values by name: those of the plan, and of `RunOptions(settings=...)`.
      record: all of released/run.json. `record["ending"]` is "complete" if the run is finished, and
        None while it is not.
    """

    params: PyTree
    is_average: bool
    last_params: PyTree
    step: int
    metrics: dict[str, Any]
    settings: dict[str, Any]
    record: dict[str, Any]


def load(
    folder: str | os.PathLike[str], *, step: int | None = None, like: PyTree = None
) -> LoadedRun:
    """Loads the parameters and settings of a finished or interrupted run.

    It reads `released/` only, so it needs neither keys nor data, and sees nothing that is not
    already charged. You may pass the folder of a run, or a copy of its `released/` folder.

    Args:
      folder: the folder that was passed to `Trainer.fit`.
      step: a step of which there is a checkpoint; by default the newest.
      like: parameters with the structure that the run was started with. The result then has this
        structure, and the frozen parameters of `like`, which are in no checkpoint. Without it, the
        result is a dict of dicts by the names in the paths of the trained parameters.
    """
    run = released_arrays(folder, step)
    lines = [line for line in read_lines(run.released / METRICS) if line.get("step") == run.step]
    return LoadedRun(
        params=arranged(run.shown, like),
        is_average=bool(run.average),
        last_params=arranged(run.last, like),
        step=run.step,
        metrics=lines[-1] if lines else {},
        settings=run.record.get("settings", {}),
        record=run.record,
    )


class ReleasedArrays(NamedTuple):
    """A checkpoint of `released/`, with its arrays by path."""

    released: Path
    record: dict[str, Any]  # all of released/run.json
    step: int
    attempt: int
    last: dict[str, np.ndarray]  # the parameters of the last step
    average: dict[str, np.ndarray]  # empty if the run keeps no average

    @property
    def shown(self) -> dict[str, np.ndarray]:
        """The parameters to use: the average, if there is one, in the dtypes of the parameters."""
        average = {path: x.astype(self.last[path].dtype) for path, x in self.average.items()}
        return average or self.last


def released_arrays(folder: str | os.PathLike[str], step: int | None = None) -> ReleasedArrays:
    """Reads the record and a checkpoint, by default the newest, of the released half of a run."""
    released = _released_half(Path(folder))
    checkpoint = _checkpoint(released / CHECKPOINTS, step)
    public, record = read_json(checkpoint / CHECKPOINT), read_json(released / RUN)
    if not isinstance(public, dict) or type(public.get("step")) is not int:
        raise RestoreCheckpointError(f"{checkpoint / CHECKPOINT} is damaged: {RESTORE}")
    if not isinstance(record, dict):
        raise RestoreCheckpointError(f"{released / RUN} is damaged: {RESTORE}")
    arrays = _arrays(checkpoint, record)
    last, average = (_below(part, arrays) for part in ("params", "average"))
    return ReleasedArrays(released, record, public["step"], public.get("attempt", 0), last, average)


def _released_half(folder: Path) -> Path:
    for released in (folder / RELEASED, folder):
        is_private = (released / SECRETS).exists()  # the other half also has a run.json
        if not is_private and (released / RUN).exists() and (released / CHECKPOINTS).is_dir():
            return released
    raise FixArgumentsError(
        f"{folder} is not the folder of a run: it has no {RELEASED}/{RUN}, or no checkpoint. "
        "Pass the folder that was passed to Trainer.fit(folder=...), or its released half."
    )


def _checkpoint(folder: Path, step: int | None) -> Path:
    steps = sorted(numbered_folders(folder))
    if not steps or (step is not None and step not in steps):
        wanted = "no checkpoint" if step is None else f"no checkpoint of step {step}"
        raise RestoreCheckpointError(f"{folder} has {wanted}; it has those of steps {steps}.")
    return folder / str(steps[-1] if step is None else step)


def _arrays(checkpoint: Path, record: dict[str, Any]) -> dict[str, np.ndarray]:
    """The parameters and their average, by paths that begin with `params` or `average`."""
    names = [path.name for path in checkpoint.iterdir() if path.is_dir()]
    wanted = sorted(n for n in names if n.split(".")[1:2] in (["params"], ["average"]))
    args = ocp.args.PyTreeRestore(
        item=dict.fromkeys(wanted, 0),
        restore_args={name: ocp.RestoreArgs(restore_type=np.ndarray) for name in wanted},
        partial_restore=True,
    )
    try:
        with warnings.catch_warnings(), ocp.Checkpointer(array_handler()) as reader:
            warnings.simplefilter("ignore")
            found = reader.restore(checkpoint.absolute(), args=args)
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise RestoreCheckpointError(f"checkpoint {checkpoint} cannot be read ({text})") from error
    paths = _paths_of(wanted, record, checkpoint)
    return {path: np.asarray(found[name]) for name, path in paths.items()}


def _paths_of(names: list[str], record: dict[str, Any], checkpoint: Path) -> dict[str, str]:
    """The paths of arrays by the names of their folders, in which slashes became dots.

    Several paths may have one dotted name, such as `a/b` and `a.b`. Folders are numbered in the
    order of the record, which tells them apart unless some of them are frozen.
    """
    recorded = collections.defaultdict(list)
    for row in record.get("arrays") or ():
        recorded[row["path"].replace("/", ".")].append(row["path"])
    numbered = collections.defaultdict(list)
    for name in names:
        numbered[name.split(".", 1)[1]].append(name)
    paths: dict[str, str] = {}
    for dotted, same in numbered.items():
        known = recorded[dotted] or [dotted.replace(".", "/")]
        if len(known) != len(same):
            raise RestoreCheckpointError(
                f"checkpoint {checkpoint} has {len(same)} arrays for the parameters "
                f"{', '.join(known)}, whose names differ only in dots and slashes, so it is not "
                "known which is which. Rename one of them and train again."
            )
        paths |= dict(zip(same, known, strict=True))
    return paths


def _below(part: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of one part by their paths in it. A part that is a single array has path ""."""
    return {path.partition("/")[2]: x for path, x in arrays.items() if path.split("/")[0] == part}
