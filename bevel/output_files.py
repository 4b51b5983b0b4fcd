"""Writes files that the user named: all of a file is written, or nothing is changed."""

import contextlib
import os
import stat
from pathlib import Path

from bevel.errors import FixArgumentsError
from bevel.file_errors import explain_file_errors


def text_before(path: Path) -> str:
    """The text of a file that is to be changed; empty if there is none."""
    try:
        with explain_file_errors(path, but=(FileNotFoundError,)):
            data = path.read_bytes()
        return data.decode("utf-8")
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError as error:
        raise FixArgumentsError(f"{path} is not UTF-8 text: {error}.") from None


def write_file(path: Path, data: bytes) -> None:
    """Writes a file. An existing one keeps its permissions, and its content if this fails."""
    with explain_file_errors(path):
        target = path.resolve()  # a link stays a link
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
        if mode is not None and not target.is_file():  # a device, such as /dev/stdout
            target.write_bytes(data)
            return
        temporary = target.with_name(f".bevel-{os.getpid()}")
        try:
            temporary.unlink(missing_ok=True)  # of a process that was killed
            with open(temporary, "xb") as file:
                if mode is not None:
                    os.fchmod(file.fileno(), mode)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        finally:
            with contextlib.suppress(OSError):  # it is harmless, and must not hide an error
                temporary.unlink(missing_ok=True)
