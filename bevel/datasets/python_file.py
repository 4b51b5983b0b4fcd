"""Loads a function from a user's Python file."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bevel.errors import FixArgumentsError


def load_function(location: str, key: str) -> Callable[..., Any]:
    """Loads the function named by 'file.py:function'. `key` is the key of the config."""
    file, _, name = location.rpartition(":")
    path, field = Path(file), f"{key} is {location!r}"
    if not file or not path.is_file() or path.suffix != ".py":
        raise FixArgumentsError(f"{field}: write 'file.py:function' with an existing file.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # it ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise FixArgumentsError(f"{field}: {path} has no function {name!r}.")
    return function
