"""Reads the files of a run folder that a report needs.

The public page uses released/ and the ledger only. The owner's page also uses private/run.json and
private/raw.jsonl. No report opens secrets.json.
"""

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bevel.errors import BevelError, FixArgumentsError
from bevel.training.folder import LEDGER, METRICS, PRIVATE, RAW, RELEASED, RUN, SECRETS

if TYPE_CHECKING:
    from bevel.accounting.ledger import Ledger

UNNAMED = "unnamed run"
Line = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class RunFiles:
    """The contents of a run folder. `ledger` is None if there is none.

    `private`, `private_record` and `raw` are None unless they were requested. `metrics` and `raw`
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
        # Not the folder's name, so that a copy of released/ gives the same page.
        return str(self.record.get("name") or UNNAMED)

    @property
    def last_step(self) -> int:
        """The step of the last checkpoint; 0 if there is none."""
        return int(self.metrics[-1]["step"]) if self.metrics else 0


def read_run(folder: str | os.PathLike[str], include_raw: bool = False) -> RunFiles:
    """Reads a run. Incomplete last lines are ignored, because the run may still be writing.

    Args:
      folder: a run folder, or a copy of its released/ alone.
      include_raw: whether to also read private/run.json and private/raw.jsonl.

    Raises:
      FixArgumentsError: the folder is not a run folder, has the layout of an older version, or
        contains a record that cannot be read.
      RestoreLedgerError: the ledger is damaged, so what was spent is not known.
    """
    from bevel.accounting.ledger import Ledger

    folder = Path(folder)
    if not folder.is_dir():
        found = "is a file" if folder.exists() else "does not exist"
        raise FixArgumentsError(f"{folder} {found}: pass the folder of a run.")
    released = folder / RELEASED if (folder / RELEASED).is_dir() else folder
    if not (released / RUN).exists():
        raise FixArgumentsError(
            f"{released} has no {RUN}: it is not a run folder, or the run was stopped before its "
            "first step. Pass the folder of a run."
        )
    record = parsed_record(released / RUN)
    if released == folder:
        _check_released(folder, record)
    ledger = released / str(record.get("ledger") or LEDGER)
    run = RunFiles(
        released=released,
        record=record,
        ledger=Ledger.read(ledger) if ledger.is_file() else None,
        metrics=_lines_of(released / METRICS),
    )
    return _with_private_files(run, folder / PRIVATE) if include_raw else run


def _with_private_files(run: RunFiles, private: Path) -> RunFiles:
    if not private.is_dir():
        raise FixArgumentsError(
            f"there is no {private}, so there are no raw figures to include: pass the folder that "
            f"contains {RELEASED}/ and {PRIVATE}/, or leave out include_raw."
        )
    return dataclasses.replace(
        run,
        private=private,
        private_record=parsed_record(private / RUN) if (private / RUN).exists() else {},
        raw=_lines_of(private / RAW),
    )


def _check_released(folder: Path, record: Mapping[str, Any]) -> None:
    """Raises unless a folder that does not contain released/ is a copy of released/.

    Released records contain no times. A record with a start time comes from private/, or from an
    older version of bevel, which did not separate the two.
    """
    path = folder.absolute()
    if path.name == PRIVATE and (path.parent / RELEASED).is_dir():
        raise FixArgumentsError(
            f"{folder} is the private half of a run: pass the folder above it, {path.parent}."
        )
    if "started" in record or any((folder / name).exists() for name in (SECRETS, RAW)):
        ledger = folder / str(record.get("ledger") or LEDGER)
        raise FixArgumentsError(
            f"{folder} has the layout of an older version of bevel. Its checkpoints contain the "
            "noise that was added, so nothing in it may be shown, and it has no report. Start "
            f'a new run in another folder with RunOptions(ledger="{ledger}"), so that what this '
            "one spent stays counted."
        )


def _lines_of(path: Path) -> tuple[Line, ...]:
    """The records of a JSON lines file, in order. Empty if there is no file."""
    from bevel.training.metrics_files import read_lines

    return _parsed(path, lambda: tuple(read_lines(path)))


def parsed_record(path: Path) -> Mapping[str, Any]:
    record = _parsed(path, lambda: json.loads(path.read_text(encoding="utf-8")))
    if not isinstance(record, dict):
        raise FixArgumentsError(f"{path} is not the record of a run: restore it from a copy.")
    return record


def _parsed(path: Path, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (OSError, ValueError) as error:
        raise FixArgumentsError(
            f"{path} cannot be read ({error}): restore it from a copy, or get access to it."
        ) from error


@contextlib.contextmanager
def valid_records(run: RunFiles, advice: str) -> Iterator[None]:
    """Around code that reads the records of a run: turns what invalid ones raise into advice."""
    try:
        yield
    except BevelError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FixArgumentsError(
            f"the files in {run.released} are not valid records of a run ({type(error).__name__}: "
            f"{error}): {advice}."
        ) from error
