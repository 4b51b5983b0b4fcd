"""The help of commands that take a config: its tables and keys, with their types and defaults."""

import ast
import dataclasses
import functools
import inspect
import textwrap
import types
import typing
from typing import Any

from bevel.cli.config import Config
from bevel.cli.overrides import option_name

WIDTH = 80
_KINDS = {bool: "TRUE|FALSE", int: "INTEGER", float: "NUMBER", str: "TEXT"}


def config_help(usage: str, about: str, config: Config | None) -> str:
    """The help text, with the values of `config`, or with the defaults if there is none."""
    parts = [f"usage: {usage}", about.strip()]
    for table in dataclasses.fields(Config):
        kind = typing.get_type_hints(Config)[table.name]
        lines = textwrap.wrap(f"[{table.name}] {inspect.getdoc(kind)}", WIDTH)
        for field in dataclasses.fields(kind):
            hint = typing.get_type_hints(kind)[field.name]
            option = f"  {option_name(table.name, field.name)}"
            lines.append(option if hint is bool else f"{option} {_shown_kind(hint)}")
            value = field.default
            note = "(required in the config)" if value is dataclasses.MISSING else ""
            if config is not None:
                value = getattr(getattr(config, table.name), field.name)
            if value not in (None, (), dataclasses.MISSING):
                note = f"({'in the config' if config else 'default'}: {_shown(value)})"
            text = f"{_documentation(kind)[field.name]} {note}"
            lines += textwrap.wrap(text, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


@functools.cache
def _documentation(kind: type) -> dict[str, str]:
    """The strings below the fields of a dataclass, by the names of the fields."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {field.name: "" for field in dataclasses.fields(kind)}
    for statement, following in zip(body.body, body.body[1:], strict=False):
        text = following.value if isinstance(following, ast.Expr) else None
        if isinstance(statement, ast.AnnAssign) and isinstance(text, ast.Constant):
            found[ast.unparse(statement.target)] = " ".join(str(text.value).split())
    return found


def _shown_kind(hint: Any) -> str:
    choices = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return "{" + ",".join(map(str, choices)) + "}"
    if typing.get_origin(hint) is tuple:
        return f"{_shown_kind(choices[0])} ..."
    if isinstance(hint, types.UnionType):
        return "|".join(_shown_kind(choice) for choice in choices if choice is not type(None))
    return _KINDS.get(hint, "VALUE")


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
