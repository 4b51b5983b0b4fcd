"""Events for TensorBoard, which tensorboardX encodes and bevel writes."""

import secrets
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bevel.file_errors import explain_file_errors


def has_tensorboard() -> bool:
    """Returns whether tensorboardX is installed."""
    try:
        import tensorboardX.event_file_writer  # noqa: F401
    except ImportError:
        return False
    return True


class EventsFile:
    """A file of scalars in a folder, which is created.

    The calling thread writes it, so errors reach the caller. tensorboardX's `SummaryWriter` writes
    in a thread that ends at the first error, and later calls then wait forever.
    """

    def __init__(self, folder: Path) -> None:
        from tensorboardX.event_file_writer import EventsWriter

        self._folder = folder
        with explain_file_errors(folder):
            folder.mkdir(exist_ok=True)
            # The name has the time in seconds: two runs within one must not write to one file.
            self._writer = EventsWriter(str(folder / "events"), f".{secrets.token_hex(4)}")

    def add(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Adds the numbers of records in JSON, each of which has a step."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import scalar

        with explain_file_errors(self._folder):
            for record in records:
                for name, value in record.items():
                    is_number = isinstance(value, int | float) and not isinstance(value, bool)
                    if name != "step" and is_number:
                        event = Event(step=record["step"], summary=scalar(name, value))
                        event.wall_time = time.time()
                        self._writer.write_event(event)
            self._writer.flush()

    def __enter__(self) -> "EventsFile":
        return self

    def __exit__(self, *error: Any) -> None:
        with explain_file_errors(self._folder):
            self._writer.close()
