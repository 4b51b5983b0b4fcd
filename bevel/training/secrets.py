"""The one file that holds what a run must keep to itself: noise key and sampling seed.

It is readable by its owner only, written before anything else of a run, and never changed.
"""

import json
import os
from pathlib import Path

from bevel.errors import FixArgumentsError, RestoreCheckpointError
from bevel.execution_plan import PlanSecrets
from bevel.training.folder import SECRETS as FILE
from bevel.training.folder import open_private, sync_folder


def write_secrets(path: Path, secrets: PlanSecrets) -> None:
    """Writes a new file of mode 0600, on disk with its name when this returns."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.unlink(missing_ok=True)
    descriptor = open_private(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump(secrets.to_dict(), file)
            file.flush()
            os.fsync(file.fileno())
        os.link(beside, path)  # unlike a rename, it never replaces the keys of a run
    except FileExistsError:
        raise FixArgumentsError(
            f"{path} is there already: keys of a run are never replaced."
        ) from None
    finally:
        beside.unlink(missing_ok=True)
    sync_folder(path.parent)


def read_secrets(path: Path) -> PlanSecrets:
    """The secrets of a run that goes on. Raises if others can read them."""
    try:
        mode = path.stat().st_mode & 0o777
        if path.is_symlink():
            raise RestoreCheckpointError(
                f"{path} is a link: secrets lie in the private folder itself. Move the file there."
            )
        text = path.read_bytes()
    except FileNotFoundError:
        raise RestoreCheckpointError(
            f"{path} is missing: it holds the noise key and the sampling seed, which are in no "
            "other file. Without them the run cannot go on as it was accounted for. Put the file "
            "back, or begin another run (in the same ledger, if it is on the same data)."
        ) from None
    except PermissionError:
        raise RestoreCheckpointError(
            f"{path} cannot be read: it belongs to whoever began the run. Go on as that user."
        ) from None
    if mode & 0o077:
        raise RestoreCheckpointError(
            f"{path} has mode {mode:04o}: others can read the noise key, and whoever knows it can "
            f"remove the noise. If nobody did, `chmod 600 {path}`; otherwise begin another run."
        )
    try:
        return PlanSecrets.from_dict(json.loads(text))
    except ValueError:
        # The cause is not shown: it quotes the file.
        raise RestoreCheckpointError(
            f"{path} is damaged: it does not hold the secrets of a run. Restore it from a copy."
        ) from None


def check_commitment(secrets: PlanSecrets, expected: str, where: str) -> None:
    """Raises unless the secrets are those that `where` has the commitment of."""
    if secrets.commitment != expected:
        raise RestoreCheckpointError(
            f"{where} was written with another noise key than the one in {FILE}: going on would "
            "mix the noise of two runs. Put the right file back."
        )
