"""Applies options such as `--plan.steps=200` to a config.

| written                                   | means                                          |
| ----------------------------------------- | ---------------------------------------------- |
| `--plan.batch-size=32`, `--plan.steps 32` | a value; `-` and `_` in names are the same     |
| `--data.tune`, `--data.no-tune`           | true, false                                    |
| `--model.widths 8 16`                     | several values; `--model.widths=8,16` also     |
| `--plan.epsilon=none`                     | no value, for keys that may be left out        |
"""

import contextlib
import dataclasses
import tomllib
import types
import typing
from collections.abc import Sequence
from typing import Any

from bevel.checks import nearest
from bevel.cli.config import Config, check_value, checked, expected
from bevel.errors import FixArgumentsError


def with_overrides(config: Config, words: Sequence[str]) -> Config:
    """The config with the options in `words` applied. Each is checked like a key of the file."""
    tables: dict[str, dict[str, Any]] = {}
    rest = list(words)
    while rest:
        option, given, value = rest.pop(0).partition("=")
        table, key, hint, negated = _field(option)
        values = [value] if given else []
        while not given and rest and not rest[0].startswith("--"):
            if values and not _takes_several(hint):
                raise FixArgumentsError(
                    f"{rest[0]!r} follows {option} {values[0]}, which takes one value: write "
                    "options as --table.key=value."
                )
            values.append(rest.pop(0))
        found = _value(option, values, hint, negated)
        try:
            check_value(typing.get_type_hints(Config)[table], key, found)
        except FixArgumentsError as error:
            raise FixArgumentsError(str(error).replace(f"{key}=", f"{option}=", 1)) from None
        tables.setdefault(table, {})[key] = found
    changed = {t: dataclasses.replace(getattr(config, t), **keys) for t, keys in tables.items()}
    return dataclasses.replace(config, **changed)


def option_name(table: str, key: str) -> str:
    return f"--{table}.{key.replace('_', '-')}"


def _field(option: str) -> tuple[str, str, Any, bool]:
    """The table, key and type that an option names, and whether it is a `no-` option."""
    known = {
        option_name(table, key): (table, key, hint)
        for table, kind in typing.get_type_hints(Config).items()
        for key, hint in typing.get_type_hints(kind).items()
    }
    name = option.replace("_", "-")
    if name in known:
        return *known[name], False
    positive = name.replace(".no-", ".", 1)
    if positive != name and positive in known and known[positive][2] is bool:
        return *known[positive], True
    if not option.startswith("--"):
        raise FixArgumentsError(
            f"{option!r} is not an option: write one as --table.key=value, after the config."
        )
    keys = {key.rpartition(".")[2]: key for key in known}
    same_key = keys.get(name.removeprefix("--"))
    near = f". Did you mean {same_key!r}?" if same_key else nearest(name, known)
    raise FixArgumentsError(f"there is no option {option}{near} --help lists them all.")


def _value(option: str, words: list[str], hint: Any, negated: bool) -> Any:
    if hint is bool and not words:
        return not negated
    several = _takes_several(hint)
    if negated or (not words and not several):
        what = "takes no value" if negated else f"has no value{expected(hint)}"
        raise FixArgumentsError(f"{option} {what}.")
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    one = words[0] if len(words) == 1 else ""
    if not several or (type(None) in kinds and one.lower() == "none"):
        return _one(option, words[0], hint)
    if int in kinds and one.isdigit():
        return int(one)
    item = typing.get_args(_tuple_of(hint))[0]
    if len(words) == 1:
        words = words[0].strip("[]").split(",") if words[0].strip("[]") else []
    return tuple(_one(option, word.strip(" '\""), item) for word in words)


def _one(option: str, word: str, hint: Any) -> Any:
    choices = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if type(None) in choices and word.lower() == "none":
        return None
    value: Any = word
    if str not in choices and typing.get_origin(hint) is not typing.Literal:
        with contextlib.suppress(ValueError):
            number = {int, float} & set(choices)
            value = number.pop()(word) if number else tomllib.loads(f"x = {word.lower()}")["x"]
    return checked(value, hint, option)


def _takes_several(hint: Any) -> bool:
    return _tuple_of(hint) is not None


def _tuple_of(hint: Any) -> Any:
    """The tuple among the types of a key, or None."""
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return next((kind for kind in kinds if typing.get_origin(kind) is tuple), None)
