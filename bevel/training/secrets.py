"""The file with the secrets of a run: its noise key and sampling seed.

Only the owner can read it. It is written before the first step and never changed.
"""

import json
import os
import warnings
from pathlib import Path

from bevel.errors import FixArgumentsError, RestoreCheckpointError
from bevel.execution_plan import PlanSecrets
from bevel.file_errors import explain_file_errors, file_error
from bevel.training.folder import SECRETS, write_atomically


def write_secrets(path: Path, secrets: PlanSecrets) -> None:
    """Writes a new file with mode 0600. It is on disk when this returns."""
    try:
        write_atomically(path, json.dumps(secrets.to_dict()), private=True, replace=False)
    except FileExistsError:
        raise FixArgumentsError(
            f"{path} already exists, and the keys of a run are never replaced."
        ) from None


def keep_secrets(path: Path, secrets: PlanSecrets) -> None:
    """Writes the secrets of a running run again if their file was removed, with a warning."""
    try:
        with explain_file_errors(path, but=(FileNotFoundError,)):
            os.lstat(path)
    except FileNotFoundError:
        write_secrets(path, secrets)
        warnings.warn(
            f"{path} was removed while a run used it. It was written again.", stacklevel=4
        )


def read_secrets(path: Path) -> PlanSecrets:
    """Reads the secrets of a run. Raises if others can read the file."""
    try:
        mode = path.stat().st_mode & 0o777
        if path.is_symlink():
            raise RestoreCheckpointError(
                f"{path} is a symbolic link. Move the file itself to the private folder."
            )
        text = path.read_bytes()
    except FileNotFoundError:
        raise RestoreCheckpointError(
            f"{path} is missing. It is the only file with the noise key and the sampling seed, "
            "without which the run cannot resume. Restore the file, or start a new run, with the "
            "same ledger if it uses the same data."
        ) from None
    except PermissionError:
        raise RestoreCheckpointError(
            f"{path} cannot be read: it belongs to the user who started the run. Resume as that "
            "user."
        ) from None
    except OSError as error:
        raise file_error(error, path) from error
    if mode & 0o077:
        raise RestoreCheckpointError(
            f"{path} has mode {mode:04o}, so others can read the noise key and remove the noise. "
            f"If nobody has read it, run `chmod 600 {path}`; otherwise start a new run."
        )
    try:
        return PlanSecrets.from_dict(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        # Hide the cause: its message quotes the file.
        raise RestoreCheckpointError(
            f"{path} is damaged: it does not contain secrets of a run. Restore it from a backup."
        ) from None


def check_commitment(secrets: PlanSecrets, expected: str, where: str) -> None:
    """Raises unless the secrets match the commitment that was found in `where`."""
    if secrets.commitment != expected:
        raise RestoreCheckpointError(
            f"{where} was written with another noise key than the one in {SECRETS}, so resuming "
            "would mix the noise of two runs. Restore the right file."
        )
