"""The metrics of a run, in two files: one that may be shown to anyone, and a private one.

`released/metrics.jsonl` has numbers that are computed from the noised parameters, public or
held-out data and the plan. `private/raw.jsonl` has numbers that are computed from the training data
without noise (loss, norms, clipped fraction, batch sizes). No epsilon covers them, so only people
who may see the data may see this file. It also has times, because the duration of a step can depend
on the data.
"""

import contextlib
import json
import math
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bevel.accounting.ledger.durable_files import write_all
from bevel.errors import FixArgumentsError, RestoreCheckpointError
from bevel.file_errors import check_in_place, explain_file_errors
from bevel.training.events_file import EventsFile, has_tensorboard
from bevel.training.folder import (
    METRICS,
    RAW,
    TENSORBOARD,
    RunFolder,
    make_private_folder,
    open_private,
)

# Every line of metrics has these, so `evaluate` may not return them.
RESERVED_NAMES = ("step", "epsilon", "delta", "attempt")


class JsonLines:
    """A file of JSON lines. Lines are on disk when `add` returns.

    A killed process can leave an incomplete last line, which is removed when the file is opened.
    """

    def __init__(self, path: Path, *, private: bool = False) -> None:
        self.path, self._private, self._file = path, private, -1
        with explain_file_errors(path):
            self._open()
            try:
                data = path.read_bytes()
                complete = data.rfind(b"\n") + 1
                if complete < len(data):
                    os.ftruncate(self._file, complete)
            except BaseException:
                self.close()
                raise

    def _open(self) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        if self._private:
            self._file = open_private(self.path, flags)
        else:
            self._file = os.open(self.path, flags | os.O_CLOEXEC, 0o644)

    def add(self, *records: Mapping[str, Any]) -> None:
        """Adds lines. If that fails, none of them is in the file, unless that fails too."""
        text = "".join(json.dumps(to_json(record), allow_nan=False) + "\n" for record in records)
        with explain_file_errors(self.path):
            self._put_back_if_removed()
            size = os.fstat(self._file).st_size
            try:
                write_all(self._file, text.encode())
                os.fsync(self._file)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file, size)
                raise

    def _put_back_if_removed(self) -> None:
        """Writes a removed file again, with a warning: the open file still has its lines."""
        if os.fstat(self._file).st_nlink or os.path.lexists(self.path):
            return check_in_place(self._file, self.path)
        lines = os.pread(self._file, os.fstat(self._file).st_size, 0)
        self.close()
        self._open()
        write_all(self._file, lines)
        warnings.warn(
            f"{self.path} was removed while a run wrote to it. It was written again.", stacklevel=3
        )

    def close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the records of a file of JSON lines. Nothing if there is no file.

    Skips an incomplete last line. Raises `RestoreCheckpointError` if a line is not a JSON object.
    """
    try:
        with explain_file_errors(path, but=(FileNotFoundError,)):
            data = path.read_bytes()
    except FileNotFoundError:
        return
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), 1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            raise damaged_line(path, number)
        yield record


def damaged_line(path: Path, number: int) -> RestoreCheckpointError:
    return RestoreCheckpointError(f"{path}, line {number} is damaged: restore it from a backup.")


def _written_steps(path: Path) -> set[tuple[int, int]]:
    """Returns the (step, attempt) pairs that already have a line."""
    written = set()
    for number, line in enumerate(read_lines(path), 1):
        if not all(isinstance(value, int) for value in _step_and_attempt(line)):
            raise damaged_line(path, number)
        written.add(_step_and_attempt(line))
    return written


def to_json(value: Any) -> Any:
    """Converts a value to what JSON can represent. Non-finite numbers become null."""
    if isinstance(value, Mapping):
        return {str(name): to_json(item) for name, item in value.items()}
    if isinstance(value, str | bool | int) or value is None:
        return value
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    converted = np.asarray(value).tolist() if not isinstance(value, bytes | set) else value
    if isinstance(converted, list | bool | int | float | str):
        return to_json(converted)
    raise FixArgumentsError(
        f"a {type(value).__name__} cannot be written as JSON. Use numbers, strings, or lists, "
        "arrays and dicts of them."
    )


class MetricsFiles:
    """Both metrics files of a run, and TensorBoard events if tensorboardX is installed.

    Raw metrics are written before their steps are charged, so that a crash loses none. Metrics are
    written when the checkpoint is published. All events are private, because they contain the time.
    """

    def __init__(self, folder: RunFolder, *, tensorboard: bool = True) -> None:
        self._metrics_written = _written_steps(folder.released / METRICS)
        self._raw_written = _written_steps(folder.private / RAW)
        with contextlib.ExitStack() as opened:  # closes the others if one cannot be opened
            self.metrics = JsonLines(folder.released / METRICS)
            opened.callback(self.metrics.close)
            self.raw = JsonLines(folder.private / RAW, private=True)
            opened.callback(self.raw.close)
            events = folder.private / TENSORBOARD
            self._events = self._raw_events = None
            if tensorboard and has_tensorboard():
                make_private_folder(events)
                self._events = opened.enter_context(EventsFile(events / "released"))
                self._raw_events = opened.enter_context(EventsFile(events / "raw"))
            self._opened = opened.pop_all()

    def has_metrics(self, step: int, attempt: int) -> bool:
        return (step, attempt) in self._metrics_written

    def write_raw(self, raw: Iterable[Mapping[str, Any]]) -> None:
        """Writes raw metrics. A step that is run again in the same attempt is written once."""
        rows = [row for row in raw if _step_and_attempt(row) not in self._raw_written]
        self.raw.add(*rows)
        self._raw_written.update(map(_step_and_attempt, rows))
        if self._raw_events:
            self._raw_events.add(map(to_json, rows))

    def write_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Writes the metrics of a checkpoint, unless they are already written."""
        if _step_and_attempt(metrics) not in self._metrics_written:
            self.metrics.add(metrics)
            self._metrics_written.add(_step_and_attempt(metrics))
            if self._events:
                self._events.add([to_json(metrics)])

    def close(self) -> None:
        with explain_file_errors(self.metrics.path.parent):
            self._opened.close()


def checked_metrics(metrics: Any) -> dict[str, Any]:
    """Returns the result of `evaluate`. Raises unless it is a mapping without reserved names."""
    if not isinstance(metrics, Mapping):
        raise FixArgumentsError(
            f"evaluate returned a {type(metrics).__name__}. Return a dict, such as "
            "{'accuracy': 0.9}."
        )
    taken = [name for name in RESERVED_NAMES if name in metrics]
    if taken:
        raise FixArgumentsError(
            f"evaluate returned {', '.join(taken)}, which bevel adds to every line of metrics. "
            "Choose another name."
        )
    return to_json(metrics)


def _step_and_attempt(line: Mapping[str, Any]) -> tuple[int, int]:
    return line.get("step"), line.get("attempt", 0)  # type: ignore[return-value]
