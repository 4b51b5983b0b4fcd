"""What a report reads of a run's folder.

The public page is made from released/ and the ledger alone. The owner's page adds run.json and
raw.jsonl of private/. No report opens secrets.json.
"""

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bevel.errors import FixArgumentsError
from bevel.training.folder import LEDGER, METRICS, PRIVATE, RAW, RELEASED, RUN, SECRETS

if TYPE_CHECKING:
    from bevel.accounting.ledger import Ledger

UNNAMED = "unnamed run"
Line = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class RunFiles:
    """The files of a run. `ledger` is None where there is none.

    `private`, `private_record` and `raw` are None unless they were asked for. `metrics` and `raw`
    are in the order in which they were written.
    """

    released: Path
    record: Mapping[str, Any]
    ledger: "Ledger | None"
    metrics: tuple[Line, ...]
    private: Path | None = None
    private_record: Mapping[str, Any] | None = None
    raw: tuple[Line, ...] | None = None

    @property
    def name(self) -> str:
        # Never the folder's: a copy of released/ elsewhere has the same page.
        return str(self.record.get("name") or UNNAMED)

    @property
    def last_step(self) -> int:
        """The step of the last checkpoint; 0 if there is none."""
        return int(self.metrics[-1]["step"]) if self.metrics else 0


def read_run(folder: str | os.PathLike[str], include_raw: bool = False) -> RunFiles:
    """Reads a run. Other processes may write to it meanwhile: torn last lines are left out.

    Args:
      folder: of a run, or a copy of its released/ alone.
      include_raw: whether to read private/run.json and private/raw.jsonl, too.

    Raises:
      FixArgumentsError: the folder is not that of a run, is of an older layout, or a record cannot
        be read.
      RestoreLedgerError: the ledger is damaged, so what was spent is not known.
    """
    given = Path(folder)
    if not given.is_dir():
        found = "is a file" if given.exists() else "is not there"
        raise FixArgumentsError(
            f"{given} {found}: give the folder of a run, as in Trainer.fit(folder=...)."
        )
    released = given / RELEASED if (given / RELEASED).is_dir() else given
    record = _read_record(released)
    if released == given:
        _check_released(given, record)
    run = RunFiles(
        released=released,
        record=record,
        ledger=_read_ledger(released / str(record.get("ledger") or LEDGER)),
        metrics=_lines_of(released / METRICS),
    )
    return _with_private_files(run, given / PRIVATE) if include_raw else run


def _with_private_files(run: RunFiles, private: Path) -> RunFiles:
    if not private.is_dir():
        raise FixArgumentsError(
            f"there is no {private}, so there is nothing raw to include: give the folder that "
            f"holds {RELEASED}/ and {PRIVATE}/, or leave include_raw out."
        )
    there = (private / RUN).exists()
    return dataclasses.replace(
        run,
        private=private,
        private_record=_parsed_record(private / RUN) if there else {},
        raw=_lines_of(private / RAW),
    )


def _read_record(released: Path) -> Mapping[str, Any]:
    path = released / RUN
    if not path.exists():
        raise FixArgumentsError(
            f"{released} has no {RUN}, so it is not a run, or it was stopped before its first "
            "step: give the folder of a run, as in Trainer.fit(folder=...)."
        )
    return _parsed_record(path)


def _check_released(folder: Path, record: Mapping[str, Any]) -> None:
    """Raises unless a folder without released/ in it is a copy of released/.

    What is released has no clock, so a record that says when it began is another one: that of
    private/, or that of a run from before the folder had two halves.
    """
    place = folder.absolute()
    if place.name == PRIVATE and (place.parent / RELEASED).is_dir():
        raise FixArgumentsError(
            f"{folder} is the private half of a run: give the folder above it, {place.parent}."
        )
    if "started" in record or any((folder / name).exists() for name in (SECRETS, RAW)):
        ledger = folder / str(record.get("ledger") or LEDGER)
        raise FixArgumentsError(
            f"{folder} has the layout of an older version of bevel. Its checkpoints hold the noise "
            "that was added, so nothing in it may be shown, and there is no report of it. Begin "
            f'another run in a new folder with RunOptions(ledger="{ledger}"), so that what this '
            "one spent stays counted."
        )


def _read_ledger(path: Path) -> "Ledger | None":
    from bevel.accounting.ledger import Ledger

    return Ledger.read(path) if path.is_file() else None


def _lines_of(path: Path) -> tuple[Line, ...]:
    """The records of a file of JSON lines, in order; none if there is no file."""
    from bevel.training.metrics_files import read_lines

    return _parsed(path, lambda: tuple(read_lines(path)))


def _parsed_record(path: Path) -> Mapping[str, Any]:
    record = _parsed(path, lambda: json.loads(path.read_text(encoding="utf-8")))
    if not isinstance(record, dict):
        raise FixArgumentsError(f"{path} is not the record of a run: restore it from a copy.")
    return record


def _parsed(path: Path, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (OSError, ValueError) as error:
        raise FixArgumentsError(
            f"{path} cannot be read ({error}): restore it from a copy, or ask for the right to "
            "read it."
        ) from error
