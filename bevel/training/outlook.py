"""Says what `fit` would do with a run folder: start, resume, do nothing or refuse. Only reads."""

import dataclasses
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from bevel.accounting.ledger import Ledger
from bevel.errors import BevelError, FixArgumentsError
from bevel.training.checkpoint_metadata import numbered_folders
from bevel.training.folder import (
    CHECKPOINTS,
    IDENTITY,
    LEDGER,
    LOCK,
    STAGING,
    RunFolder,
    check_not_older,
)
from bevel.training.identity import Identity, check_resumable, read_identity


@dataclasses.dataclass(frozen=True)
class _FolderOutlook:
    """What a run in a folder would do.

    Attributes:
      status: 'new', 'resumes', 'complete' or 'refused'.
      step: the step that the run would begin with.
      reason: why it is refused.
      spent: the epsilon that all runs of the ledger have spent, or None if it has no charge or
        there is no delta.
    """

    status: Literal["new", "resumes", "complete", "refused"]
    step: int = 0
    reason: str = ""
    spent: float | None = None


def folder_outlook(
    root: Path,
    identity: Identity,
    steps: int,
    *,
    ledger: str | os.PathLike[str] | None = None,
    accept: Sequence[str] = (),
    delta: float | None = None,
) -> _FolderOutlook:
    """Looks at a run folder and its ledger without changing them.

    Checkpoints are not opened, so a damaged one is not noticed, and neither is a ledger that was
    rolled back. An empty digest in `identity` is not compared.
    """
    folder = RunFolder(root)
    try:
        _check_usable(folder)
        charges = _read_ledger(Path(ledger or folder.released / LEDGER))
        before = read_identity(folder.private)
        published = numbered_folders(folder.released / CHECKPOINTS)
        if before is None:
            _check_new(folder, published, charges)
            return _FolderOutlook("new", spent=_spent(charges, delta))
        check_resumable(before, identity, accept, str(root))
    except BevelError as error:
        return _FolderOutlook("refused", reason=str(error))
    staged = numbered_folders(folder.private / STAGING)
    step = max([0, *published, *staged])
    status: Literal["complete", "resumes"] = "complete" if step >= steps else "resumes"
    return _FolderOutlook(status, step, spent=_spent(charges, delta))


def _check_usable(folder: RunFolder) -> None:
    for path in (folder.root, folder.released):
        if path.exists() and not path.is_dir():
            raise FixArgumentsError(f"{path} is a file. Pass a folder for the run.")
    check_not_older(folder.root)
    lock = folder.private / LOCK
    if lock.exists():
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FixArgumentsError(
                f"{folder.root} is in use by another run. Wait until it ends, or choose another "
                "folder."
            ) from None
        finally:
            os.close(descriptor)
    parent = next(path for path in (folder.root, *folder.root.absolute().parents) if path.exists())
    if not os.access(parent, os.W_OK):
        raise FixArgumentsError(f"{parent} cannot be written to: choose another folder.")


def _read_ledger(path: Path) -> Ledger | None:
    return Ledger.read(path) if path.exists() else None


def _check_new(folder: RunFolder, published: list[int], charges: Ledger | None) -> None:
    if published:
        raise FixArgumentsError(
            f"{folder.private / IDENTITY} is missing, so it is unknown what this run was started "
            "with. Restore the private half from a backup."
        )
    name = folder.root.absolute().name
    if charges is not None and name in charges.runs:
        raise FixArgumentsError(
            f"the ledger already has a run {name!r}, but {folder.root} is empty. Pass the folder "
            "of that run, or another name with RunOptions(name=...)."
        )


def _spent(charges: Ledger | None, delta: float | None) -> float | None:
    if charges is None or not charges.runs:
        return None
    if delta is None and charges.terms.budget is None:
        return None
    return float(charges.spent(delta).epsilon)
