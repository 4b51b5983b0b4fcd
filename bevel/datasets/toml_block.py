"""Writes tables of a config as TOML, in lines of at most 80 columns."""

import json
import re
import textwrap
from collections.abc import Mapping
from typing import Any

WIDTH = 78


def toml_block(name: str, values: Mapping[str, Any], comments: Mapping[str, str]) -> str:
    """A table with its keys. `comments` are written above their keys, or at the end.

    A value is a bool, a number, a text, a list of them, or a `Bare` text.
    """
    lines = [f"[{name}]"]
    for key, value in values.items():
        if key in comments:
            lines += _comment(comments[key])
        lines += _assignment(key, value)
    for key, comment in comments.items():
        if key not in values:
            lines += _comment(comment)
    return "\n".join(lines) + "\n"


class Bare(str):
    """A text that is written as it is, such as a date."""

    __slots__ = ()


def _assignment(key: str, value: Any) -> list[str]:
    name = key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)
    line = f"{name} = {_literal(value)}"
    if len(line) <= WIDTH or not isinstance(value, list | tuple):
        return [line]
    lines, row = [f"{name} = ["], "   "
    for item in value:
        text = f" {_literal(item)},"
        if len(row) + len(text) > WIDTH and row.strip():
            lines.append(row)
            row = "   "
        row += text
    return [*lines, row, "]"]


def _literal(value: Any) -> str:
    if isinstance(value, Bare):
        return str(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_literal(item) for item in value)}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{int(value)}" if value == int(value) and abs(value) < 1e15 else repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent="# ")
