"""Writes values into the tables of a TOML file, and keeps everything else in it as it is."""

import re
import tomllib
from collections.abc import Mapping
from typing import Any

from bevel.checks import in_one_line
from bevel.errors import FixArgumentsError

Tables = Mapping[str, Mapping[str, Any]]


def not_toml(where: object, error: Exception) -> FixArgumentsError:
    """What to raise for an error of `tomllib`: ValueError, or RecursionError."""
    why = "it is nested too deeply" if isinstance(error, RecursionError) else in_one_line(error)
    return FixArgumentsError(f"{where} is not valid TOML: {why}.")


def toml_text(tables: Tables) -> str:
    """Tables of numbers and strings as TOML."""
    return "\n".join(
        f"[{table}]\n" + "".join(f"{key} = {_value(value)}\n" for key, value in values.items())
        for table, values in tables.items()
    )


def with_tables(text: str, tables: Tables, where: str) -> str:
    """Returns the text of a TOML file with these values set. Comments and other keys are kept.

    Raises if the file writes its tables in a way that a change by lines would not understand, such
    as `plan = {...}`: the result is read again, and must hold what was asked for and nothing else.
    """
    try:
        changed, wanted = text, tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise not_toml(where, error) from None
    for table, values in tables.items():
        before = wanted.get(table, {})
        new = {key: value for key, value in values.items() if before.get(key) != value}
        if new:
            changed = _with_table(changed, table, new)
        wanted[table] = {**before, **values}
    try:
        found = tomllib.loads(changed)
    except tomllib.TOMLDecodeError:
        found = None
    if found != wanted:
        names = ", ".join(f"[{table}]" for table in tables)
        raise FixArgumentsError(
            f"{where} does not have {names} as tables with one key on each line, so it was not "
            "changed. Copy the values into it yourself, or write to another file."
        )
    return changed


def _with_table(text: str, table: str, values: Mapping[str, Any]) -> str:
    lines = text.splitlines()
    heads = [i for i, line in enumerate(lines) if re.match(r"\s*\[", line)]
    start = next((i for i in heads if re.match(rf"\s*\[\s*{table}\s*\]", lines[i])), None)
    if start is None:
        return text + ("\n" if text.strip() else "") + toml_text({table: values})
    stop = next((i for i in heads if i > start), len(lines))
    body, new = lines[start + 1 : stop], []
    for key, value in values.items():
        line = f"{key} = {_value(value)}"
        at = next((i for i, old in enumerate(body) if re.match(rf"\s*{key}\s*=", old)), None)
        if at is None:
            new.append(line)
        else:
            comment = re.search(r"^[^#\"']*?(\s+#.*)$", body[at])
            body[at] = line + (comment[1] if comment else "")
    while body and not body[-1].strip():
        body.pop()
    tail = [""] * (stop < len(lines))
    return "\n".join([*lines[: start + 1], *body, *new, *tail, *lines[stop:]]) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, float) and value == int(value) and abs(value) < 1e15:
        return f"{value:.1f}" if value < 16 else str(int(value))
    return repr(value)
