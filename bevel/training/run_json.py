"""The two run.json files of a run: a released one, and a private one with times."""

import datetime
import json
from pathlib import Path
from typing import Any

from bevel.errors import FixArgumentsError, RestoreCheckpointError
from bevel.file_errors import explain_file_errors
from bevel.training.folder import RUN, RunFolder, write_atomically
from bevel.training.metrics_files import to_json
from bevel.training.process_agreement import is_first


class RunRecord:
    """Both records, as they are on disk. Only the first process writes them."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self.public, self.private = _read_record(folder.released), _read_record(folder.private)

    def name_of_run(self, asked: str | None) -> str:
        """The recorded name, or that of a new run: `asked`, by default the name of the folder."""
        root = self._folder.root
        name = self.public.get("name") or asked or root.absolute().name
        if asked not in (None, name):
            raise FixArgumentsError(
                f"{root} contains the run {name!r}, not {asked!r}. Leave out the name, or choose "
                "another folder."
            )
        return str(name)

    def add_public(self, **fields: Any) -> None:
        """Adds fields that may be shown to anyone."""
        self.public |= fields
        if is_first():
            write_atomically(self._folder.released / RUN, _as_text(self.public), private=False)
            self._folder.reset_times()

    def add_private(self, **fields: Any) -> None:
        """Adds times and other private fields."""
        self.private |= fields
        if is_first():
            write_atomically(self._folder.private / RUN, _as_text(self.private), private=True)


def _read_record(half: Path) -> dict[str, Any]:
    """Reads the record of one half. Empty if there is none yet."""
    try:
        return read_record(half / RUN)
    except FileNotFoundError:
        return {}


def read_record(path: Path) -> dict[str, Any]:
    """Reads a JSON object. Raises `FileNotFoundError` if there is no such file."""
    with explain_file_errors(path, but=(FileNotFoundError,)):
        text = path.read_bytes()
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise damaged(path)
    return record


def damaged(path: Path) -> RestoreCheckpointError:
    return RestoreCheckpointError(f"{path} is damaged: restore it from a backup.")


def _as_text(record: dict[str, Any]) -> str:
    return json.dumps(to_json(record), indent=2)


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
