"""Finds the line of a key in a TOML file, for error messages."""

import re
from collections.abc import Sequence

_TABLE = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]")
_KEY = re.compile(r"\s*([\w.\"'-]+(?:\s*\.\s*[\w\"'-]+)*)\s*=")


def line_of(text: str, keys: Sequence[str]) -> int | None:
    """The number of the line that sets a key, or else of the table that it belongs to.

    The text is searched line by line, so a line of a long string that looks like the key would be
    found too. None if nothing is found.
    """
    table: list[str] = []
    best, depth = None, 0
    for number, line in enumerate(text.splitlines(), 1):
        if header := _TABLE.match(line):
            table = found = _names(header[1])
        elif key := _KEY.match(line):
            found = table + _names(key[1])
        else:
            continue
        if found == list(keys[: len(found)]) and len(found) > depth:
            best, depth = number, len(found)
    return best


def _names(dotted: str) -> list[str]:
    return [name.strip().strip("\"'") for name in dotted.split(".")]
