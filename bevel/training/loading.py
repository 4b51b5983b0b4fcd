"""`load`: the parameters and settings of a run, from the half of its folder that anyone may see."""

import dataclasses
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from bevel.errors import FixArgumentsError, RestoreCheckpointError
from bevel.training.checkpoint import array_handler
from bevel.training.folder import CHECKPOINT, CHECKPOINTS, METRICS, RELEASED, RUN, SECRETS
from bevel.training.metrics_files import read_lines
from bevel.training.state import path_text

PyTree = Any


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
    released = _released_half(Path(folder))
    checkpoint = _checkpoint(released / CHECKPOINTS, step)
    taken = json.loads((checkpoint / CHECKPOINT).read_text())["step"]
    record = json.loads((released / RUN).read_text())
    paths = {row["path"].replace("/", "."): row["path"] for row in record.get("arrays") or ()}
    arrays = {paths.get(name, name.replace(".", "/")): x for name, x in _arrays(checkpoint).items()}
    last, average = (_below(f"{part}/", arrays) for part in ("params", "average"))
    shown = {path: x.astype(last[path].dtype) for path, x in average.items()} or last
    lines = [line for line in read_lines(released / METRICS) if line.get("step") == taken]
    return LoadedRun(
        params=_arranged(shown, like),
        is_average=bool(average),
        last_params=_arranged(last, like),
        step=taken,
        metrics=lines[-1] if lines else {},
        settings=record.get("settings", {}),
        record=record,
    )


def _released_half(folder: Path) -> Path:
    for released in (folder / RELEASED, folder):
        is_private = (released / SECRETS).exists()  # the other half also has a run.json
        if not is_private and (released / RUN).exists() and (released / CHECKPOINTS).is_dir():
            return released
    raise FixArgumentsError(
        f"{folder} is not the folder of a run: it has no {RELEASED}/run.json. Pass the folder that "
        "was passed to Trainer.fit(folder=...), or its released half."
    )


def _checkpoint(folder: Path, step: int | None) -> Path:
    steps = sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())
    if not steps or (step is not None and step not in steps):
        wanted = "no checkpoint" if step is None else f"no checkpoint of step {step}"
        raise RestoreCheckpointError(f"{folder} has {wanted}; it has those of steps {steps}.")
    return folder / str(steps[-1] if step is None else step)


def _arrays(checkpoint: Path) -> dict[str, np.ndarray]:
    """The parameters and their average, by dotted paths."""
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
    return {name.split(".", 1)[1]: np.asarray(found[name]) for name in wanted}


def _below(prefix: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {path.removeprefix(prefix): x for path, x in arrays.items() if path.startswith(prefix)}


def _arranged(arrays: dict[str, np.ndarray], like: PyTree) -> PyTree:
    """Arrays by path as a tree: that of `like`, or dicts of dicts."""
    if like is None:
        tree: dict[str, Any] = {}
        for path, x in arrays.items():
            *parents, name = path.split("/")
            node = tree
            for parent in parents:
                node = node.setdefault(parent, {})
            node[name] = x
        return tree
    left = dict(arrays)

    def leaf(path: Any, given: Any) -> Any:
        found = left.pop(path_text(path), None)
        if found is not None and found.shape != np.shape(given):
            raise FixArgumentsError(
                f"like has shape {np.shape(given)} at {path_text(path)!r}, but the run has "
                f"{found.shape}: pass parameters of the model that the run trained."
            )
        return given if found is None else found

    tree = jax.tree_util.tree_map_with_path(leaf, like)
    if left:
        raise FixArgumentsError(
            f"like lacks the parameters {', '.join(list(left)[:6])} of the run: pass parameters of "
            "the model that the run trained."
        )
    return tree
