"""Recognises a last line that was cut short while it was written.

Lines are appended, so a write that was cut short leaves only the first bytes of a line. Anything
else after the last complete line is damage, and damage may hide charges.
"""

import json
from pathlib import Path
from typing import Any

from bevel.accounting.ledger.durable_files import sync_folder, write_new

# Of every line after the first, which is never torn.
LINE_STARTS = (b'{"entry":{"attempt":', b'{"entry":{"header":"')
NAMES = ("entry", "hash", "line", "previous")

# Endings that can turn a text that was cut off into JSON, once brackets are closed: for a cut
# inside a string, and for a cut elsewhere.
IN_STRING = tuple(
    escape + '"' + value
    for escape in ("", "n", "0", "00", "000", "0000")  # the rest of \n or \u0000
    for value in ("", ":0")
)
OUTSIDE = ("", "0", ":0", '"":0', "rue", "ue", "e", "alse", "lse", "se", "ull", "ll", "l")


def split_lines(data: bytes) -> tuple[list[bytes], bytes]:
    """Returns the lines, with their line feeds, and the bytes after the last line feed."""
    *lines, rest = data.split(b"\n")
    return [line + b"\n" for line in lines], rest


def is_complete(rest: bytes) -> bool:
    """Whether only the line feed is missing, so that the whole entry is known."""
    try:
        return isinstance(json.loads(rest), dict)
    except (ValueError, RecursionError):
        return False


def could_be_torn(rest: bytes) -> bool:
    """Whether these can be the first bytes of a line, a single JSON object that was cut off."""
    if not any(rest[: len(start)] == start[: len(rest)] for start in LINE_STARTS):
        return False
    if any(start in rest[1:] for start in LINE_STARTS):
        return False
    if not all(0x20 <= byte < 0x7F for byte in rest):
        return False
    record = _completed(rest.decode())
    if record is None or len(record) > len(NAMES):
        return False
    return all(name.startswith(prefix) for prefix, name in zip(record, NAMES, strict=False))


def _completed(text: str) -> dict[str, Any] | None:
    """Completes a text to a JSON object in any way. Returns None if that is not possible.

    It is not possible for a text with a complete object and more after it.
    """
    closing, in_string, escaped = "", False, False
    for character in text:
        if in_string:
            in_string = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == '"':
            in_string = True
        elif character in "{[":
            closing = ("}" if character == "{" else "]") + closing
        elif character in "}]":
            closing = closing[1:]
        elif character == " ":
            return None  # lines are written without spaces
    for ending in IN_STRING if in_string else OUTSIDE:
        try:
            return json.loads(text + ending + closing)
        except (ValueError, RecursionError):
            continue
    return None


def save_torn(rest: bytes, path: Path) -> Path:
    """Saves the bytes beside the file under an unused name. They are on disk when this returns."""
    target = path.resolve()
    mode = target.stat().st_mode & 0o600
    number = 1
    while True:
        saved = target.with_name(f"{target.name}.torn-{number}")
        try:
            write_new(saved, rest, mode)
        except FileExistsError:
            number += 1
            continue
        sync_folder(saved)
        return saved
