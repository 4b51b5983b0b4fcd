"""What a report reads of a run's folder: never secrets.json, and raw.jsonl only when asked to."""

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bevel.errors import FixArgumentsError

if TYPE_CHECKING:
    from bevel.accounting.ledger import Ledger

RUN, LEDGER, METRICS, RAW = "run.json", "ledger.jsonl", "metrics.jsonl", "raw.jsonl"
Line = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class RunFiles:
    """The files of a run. `ledger` is None where there is none, `raw` where it was not asked for.

    `metrics` and `raw` are in the order in which they were written.
    """

    folder: Path
    record: Mapping[str, Any]
    ledger: "Ledger | None"
    metrics: tuple[Line, ...]
    raw: tuple[Line, ...] | None

    @property
    def name(self) -> str:
        return str(self.record.get("name") or self.folder.absolute().name)


def read_run(folder: str | os.PathLike[str], include_raw: bool = False) -> RunFiles:
    """Reads a run. Other processes may write to it meanwhile: torn last lines are left out.

    Raises:
      FixArgumentsError: the folder is not that of a run, or a record cannot be read.
      RestoreLedgerError: the ledger is damaged, so what was spent is not known.
    """
    place = Path(folder)
    record = read_record(place)
    return RunFiles(
        folder=place,
        record=record,
        ledger=read_ledger(place / str(record.get("ledger") or LEDGER)),
        metrics=lines_of(place / METRICS),
        raw=lines_of(place / RAW) if include_raw else None,
    )


def read_record(folder: Path) -> Mapping[str, Any]:
    path = folder / RUN
    if not folder.is_dir():
        found = "is a file" if folder.exists() else "is not there"
        raise FixArgumentsError(
            f"{folder} {found}: give the folder of a run, as in Trainer.fit(folder=...)."
        )
    if not path.exists():
        raise FixArgumentsError(
            f"{folder} has no {RUN}, so it is no run, or one that was stopped before its first "
            "step: give the folder of a run, as in Trainer.fit(folder=...)."
        )
    record = parsed(path, lambda: json.loads(path.read_text(encoding="utf-8")))
    if not isinstance(record, dict):
        raise FixArgumentsError(f"{path} is not the record of a run: restore it from a copy.")
    return record


def read_ledger(path: Path) -> "Ledger | None":
    from bevel.accounting.ledger import Ledger

    return Ledger.read(path) if path.exists() else None


def lines_of(path: Path) -> tuple[Line, ...]:
    """The records of a file of JSON lines, in order; none if there is no file."""
    from bevel.training.records import read_lines

    return parsed(path, lambda: tuple(read_lines(path)))


def parsed(path: Path, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (OSError, ValueError) as error:
        raise FixArgumentsError(
            f"{path} cannot be read ({error}): restore it from a copy, or ask for the right to "
            "read it."
        ) from error
