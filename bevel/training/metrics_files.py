"""What a run writes down, in files of both halves that are never mixed.

`released/metrics.jsonl` has numbers that come from the noised parameters, from public or held-out
data and from the plan. `private/raw.jsonl` is computed from the training data without noise (loss,
norms, clipped fraction, batch sizes): no epsilon covers it, so it stays with those who may see the
data. Times are kept there too, because how long a step takes can depend on the data.
"""

import contextlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bevel.errors import FixArgumentsError, RestoreCheckpointError
from bevel.training.folder import EVENTS, METRICS, RAW, RunFolder, closed_folder, open_private

# What a line of metrics has of its own: `evaluate` may not return these.
OF_THE_RUN = ("step", "epsilon", "delta", "attempt")


class JsonLines:
    """A file of JSON lines. A line is on disk, whole, when `add` returns.

    A torn last line is what a killed process leaves: it is cut off when the file is opened.
    """

    def __init__(self, path: Path, *, private: bool = False) -> None:
        self.path = path
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        if private:
            self._file = open_private(path, flags)
        else:
            self._file = os.open(path, flags | os.O_CLOEXEC, 0o644)
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.ftruncate(self._file, whole)

    def add(self, *records: Mapping[str, Any]) -> None:
        text = "".join(json.dumps(plain(record), allow_nan=False) + "\n" for record in records)
        data = memoryview(text.encode())
        while data:
            data = data[os.write(self._file, data) :]
        os.fsync(self._file)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file of JSON lines, a torn last line left out. None if there is no file.

    Raises `RestoreCheckpointError` for a line that is not a JSON object.
    """
    if not path.exists():
        return
    data = path.read_bytes()
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), 1):
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise damaged(path, number)
        yield found


def damaged(path: Path, number: int) -> RestoreCheckpointError:
    return RestoreCheckpointError(f"{path}, line {number} is damaged: restore it from a copy.")


def _places(path: Path) -> set[tuple[int, int]]:
    """Steps and attempts of which there are lines."""
    found = set()
    for number, line in enumerate(read_lines(path), 1):
        if not isinstance(line.get("step"), int):
            raise damaged(path, number)
        found.add(_place(line))
    return found


def plain(value: Any) -> Any:
    """A value as JSON has it: what is not finite becomes null, arrays become lists."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, str | bool | int) or value is None:
        return value
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    found = np.asarray(value).tolist() if not isinstance(value, bytes | set) else value
    if isinstance(found, list | bool | int | float | str):
        return plain(found)
    raise FixArgumentsError(
        f"a {type(value).__name__} cannot be written as JSON: give numbers, texts, or lists, "
        "arrays and dicts of them."
    )


class MetricsFiles:
    """Both files of a run, and TensorBoard events where tensorboardX is installed.

    Raw rows are written before their steps are charged, so that none is lost to a crash; metrics
    when the checkpoint is published. Events carry the time of day, so all of them are private.
    """

    def __init__(self, folder: RunFolder, *, tensorboard: bool = True) -> None:
        self.metrics = JsonLines(folder.released / METRICS)
        self.raw = JsonLines(folder.private / RAW, private=True)
        self._released = _places(folder.released / METRICS)
        self._seen = _places(folder.private / RAW)
        writer = _event_writer() if tensorboard else None
        if writer:
            closed_folder(folder.private / EVENTS)
        self._events = writer and writer(str(folder.private / EVENTS / "released"))
        self._raw_events = writer and writer(str(folder.private / EVENTS / "raw"))

    def released(self, step: int, attempt: int) -> bool:
        """Whether the metrics of a step were written before."""
        return (step, attempt) in self._released

    def keep(self, raw: Iterable[Mapping[str, Any]]) -> None:
        """Writes raw rows. Steps that are run again, under one attempt, are written once."""
        rows = [row for row in raw if _place(row) not in self._seen]
        self.raw.add(*rows)
        self._seen.update(map(_place, rows))
        _add_events(self._raw_events, rows)

    def release(self, metrics: Mapping[str, Any]) -> None:
        """Writes the metrics of a checkpoint, once."""
        if _place(metrics) not in self._released:
            self.metrics.add(metrics)
            self._released.add(_place(metrics))
            _add_events(self._events, [metrics])

    def close(self) -> None:
        self.metrics.close()
        self.raw.close()
        for events in (self._events, self._raw_events):
            if events:
                events.close()


def checked_metrics(found: Any) -> dict[str, Any]:
    """What `evaluate` returned, if it is a mapping that takes no name of the run's own."""
    if not isinstance(found, Mapping):
        raise FixArgumentsError(
            f"evaluate returned a {type(found).__name__}: return a dict, such as {{'accuracy': x}}."
        )
    taken = [name for name in OF_THE_RUN if name in found]
    if taken:
        raise FixArgumentsError(
            f"evaluate returned {', '.join(taken)}, which every line of metrics has of its own: "
            "give it another name."
        )
    return plain(found)


def _place(line: Mapping[str, Any]) -> tuple[int, int]:
    """Step and attempt: there is one line for each."""
    return line["step"], line.get("attempt", 0)


def _event_writer() -> Any:
    """TensorBoard's writer, or None where it is not installed."""
    with contextlib.suppress(ImportError):
        from tensorboardX import SummaryWriter

        return SummaryWriter
    return None


def _add_events(events: Any, records: Iterable[Mapping[str, Any]]) -> None:
    if not events:
        return
    for record in records:
        for name, value in plain(record).items():
            if name != "step" and isinstance(value, int | float) and not isinstance(value, bool):
                events.add_scalar(name, value, record["step"])
    events.flush()
