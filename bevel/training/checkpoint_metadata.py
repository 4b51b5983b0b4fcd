"""The metadata of a checkpoint, and the names of checkpoint folders."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from bevel.errors import RestoreCheckpointError
from bevel.file_errors import file_error, is_storage_fault
from bevel.training.folder import CHECKPOINT


@dataclasses.dataclass(frozen=True)
class CheckpointMetadata:
    """The metadata of a checkpoint. Private, because its checksums cover the noise state.

    Attributes:
      step: the number of steps that the state has taken.
      attempt: the attempt of the ledger under which the steps were released.
      plan: the plan's fingerprint.
      key: the commitment to the run's secrets.
      ledger: the hash of the ledger's last line before this checkpoint was charged.
      digest: the checksums of the arrays of both halves.
    """

    step: int
    attempt: int
    plan: str
    key: str
    ledger: str
    digest: list[str] = dataclasses.field(default_factory=list)

    def public(self) -> dict[str, Any]:
        """Returns the fields that the released half contains."""
        return {"step": self.step, "attempt": self.attempt, "plan": self.plan}

    def check_plan(self, fingerprint: str, where: str) -> None:
        """Raises unless the checkpoint belongs to a plan."""
        if self.plan != fingerprint:
            raise RestoreCheckpointError(
                f"{where} belongs to another plan: use the plan that the run was started with, or "
                "start a new run"
            )


def read_metadata(folder: Path) -> CheckpointMetadata:
    fields = read_json(folder / CHECKPOINT)
    try:
        meta = CheckpointMetadata(**fields)
        if [type(x) for x in (meta.step, meta.attempt, meta.digest)] != [int, int, list]:
            raise TypeError("fields have the wrong types")
        return meta
    except TypeError as error:
        raise RestoreCheckpointError(
            f"checkpoint {folder} cannot be read ({one_line(error)})"
        ) from error


def read_json(path: Path) -> Any:
    """Raises `RestoreCheckpointError` if the file is missing or damaged."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        if is_storage_fault(error):
            raise file_error(error, path) from error
        raise RestoreCheckpointError(
            f"checkpoint {path.parent} cannot be read ({one_line(error)})"
        ) from error


def one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def numbered_folders(folder: Path) -> list[int]:
    """Returns the subfolders whose names are numbers, largest first."""
    if not folder.is_dir():
        return []
    names = [path.name for path in folder.iterdir()]
    return sorted((int(n) for n in names if n.isdecimal() and n == str(int(n))), reverse=True)
