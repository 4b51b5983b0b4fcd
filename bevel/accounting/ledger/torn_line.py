"""The end of a file whose last line was cut short while it was written.

Lines are appended, so a write that was cut short leaves the first bytes of a line, and nothing
else: anything else after the last whole line is damage, and damage may hide charges.
"""

import json
from pathlib import Path
from typing import Any

from bevel.accounting.ledger.durable_files import sync_folder, write_new

BEGINNING = b'{"entry":{"attempt":'  # of every line but the first, which is never torn
NAMES = ("entry", "hash", "line", "previous")

# What may follow a text that was cut off at any place, to make it JSON once brackets are closed.
IN_STRING = tuple(
    escape + '"' + value
    for escape in ("", "n", "0", "00", "000", "0000")  # the rest of \n or \u0000
    for value in ("", ":0")
)
OUTSIDE = ("", "0", ":0", '"":0', "rue", "ue", "e", "alse", "lse", "se", "ull", "ll", "l")


def split_torn(data: bytes) -> tuple[list[bytes], bytes]:
    """Lines with their ends, and what follows the last of them."""
    *lines, rest = data.split(b"\n")
    return [line + b"\n" for line in lines], rest


def is_whole(rest: bytes) -> bool:
    """Whether only the line's end is missing, so that all of its entry is known."""
    try:
        return isinstance(json.loads(rest), dict)
    except (ValueError, RecursionError):
        return False


def could_be_torn(rest: bytes) -> bool:
    """Whether these can be the first bytes of a line: one JSON object, cut off."""
    if rest[: len(BEGINNING)] != BEGINNING[: len(rest)] or BEGINNING in rest[1:]:
        return False
    if not all(0x20 <= byte < 0x7F for byte in rest):
        return False
    record = _completed(rest.decode())
    if record is None or len(record) > len(NAMES):
        return False
    return all(name.startswith(given) for given, name in zip(record, NAMES, strict=False))


def _completed(text: str) -> dict[str, Any] | None:
    """The JSON object that a text is the beginning of, filled up in any way; None if there is none.

    A text with a whole object and more after it is the beginning of none.
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
            return None  # lines are written without
    for missing in IN_STRING if in_string else OUTSIDE:
        try:
            return json.loads(text + missing + closing)
        except (ValueError, RecursionError):
            continue
    return None


def keep_torn(rest: bytes, path: Path) -> Path:
    """Writes the bytes beside the file, under a name that was free; on disk when it returns."""
    target = path.resolve()
    mode = target.stat().st_mode & 0o600
    number = 1
    while True:
        kept = target.with_name(f"{target.name}.torn-{number}")
        try:
            write_new(kept, rest, mode)
        except FileExistsError:
            number += 1
            continue
        sync_folder(kept)
        return kept
