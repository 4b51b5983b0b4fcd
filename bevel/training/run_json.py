"""The two run.json of a run: what ran, for everyone; and when, for its owner."""

import datetime
import json
from pathlib import Path
from typing import Any

from bevel.errors import RestoreCheckpointError
from bevel.training.folder import RUN, RunFolder, write_whole
from bevel.training.metrics_files import plain
from bevel.training.process_agreement import is_first


class RunRecord:
    """Both records, as they are on disk. The first process writes them, each as a whole."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self.public, self.private = _read_record(folder.released), _read_record(folder.private)

    def add_public(self, **what: Any) -> None:
        """Adds what may be shown to anyone."""
        self.public |= what
        if is_first():
            write_whole(self._folder.released / RUN, _as_text(self.public), private=False)
            self._folder.forget_times()

    def add_private(self, **what: Any) -> None:
        """Adds times, and all else that is not for everyone."""
        self.private |= what
        if is_first():
            write_whole(self._folder.private / RUN, _as_text(self.private), private=True)


def _read_record(half: Path) -> dict[str, Any]:
    """The record of one half; empty if there is none yet."""
    path = half / RUN
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text())
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise RestoreCheckpointError(f"{path} is damaged: restore it from a copy.")
    return found


def _as_text(record: dict[str, Any]) -> str:
    return json.dumps(plain(record), indent=2)


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
