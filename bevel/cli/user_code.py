"""Finds the line of the user's own code, such as a model file, that raised an exception."""

import os
import sys
import sysconfig
import traceback
from pathlib import Path

import bevel
from bevel.checks import in_one_line

_LIBRARIES = (
    str(Path(bevel.__file__).parent),
    *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    sys.prefix,
    sys.base_prefix,
)


def error_in_user_code(error: Exception) -> str | None:
    """A message with file, line and error. None if none of the user's code was running."""
    if isinstance(error, SyntaxError) and _is_users(error.filename or ""):
        return f"{_shown(error.filename or '')}, line {error.lineno}: {error.msg}."
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_users(f.filename)]
    if not frames:
        return None
    at = frames[-1]
    where = "" if at.name == "<module>" else f", in {at.name}"
    return (
        f"{_shown(at.filename)}, line {at.lineno}{where}: {type(error).__name__}: "
        f"{in_one_line(error)}"
    )


def _is_users(file: str) -> bool:
    inside = (Path(file).is_relative_to(folder) for folder in _LIBRARIES)
    return bool(file) and not file.startswith("<") and not any(inside)


def _shown(file: str) -> str:
    """The path as it is short: relative to the working directory if it is below it."""
    relative = os.path.relpath(file)
    return file if relative.startswith("..") else relative
