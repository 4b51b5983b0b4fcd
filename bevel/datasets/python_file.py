"""Loads a function of the user's, such as 'file.py:function', with errors that say where.

The file is run like any other program, so use only files that you trust.
"""

import importlib
import importlib.util
import os
import sys
import traceback
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

from bevel.checks import in_one_line, nearest
from bevel.errors import BevelError, FixArgumentsError

_FRAMEWORKS = ("flax", "equinox", "keras")


class _LoadedFunction(NamedTuple):
    """A function, and the file that it is from."""

    function: Callable[..., Any]
    file: str


def load_function(location: str, key: str) -> _LoadedFunction:
    """Loads the function named by 'file.py:function' or 'package.module:function'.

    `key` is the key of the config, for messages.
    """
    field = f"{key} is {location!r}"
    file, _, name = location.rpartition(":")
    if not file or not name.isidentifier():
        raise FixArgumentsError(f"{field}: write 'file.py:function', such as 'mine.py:build'.")
    # If the file imports Keras, it has to be the one that runs on JAX.
    os.environ.setdefault("KERAS_BACKEND", "jax")
    is_file = file.endswith(".py") or os.sep in file
    module = _from_file(Path(file), field) if is_file else _imported(file, field)
    function = getattr(module, name, None)
    if not callable(function):
        own = [n for n, value in vars(module).items() if callable(value) and n[0] != "_"]
        raise FixArgumentsError(f"{field}: {file} has no function {name!r}{nearest(name, own)}")
    return _LoadedFunction(function, getattr(module, "__file__", None) or file)


def _from_file(path: Path, field: str) -> ModuleType:
    if not path.is_file():
        known = [p.name for p in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise FixArgumentsError(
            f"{field}: there is no file {path}{nearest(path.name, known)} Paths are relative to "
            "the working directory."
        )
    path = path.resolve()
    # Another module may have the name already: two files called model.py, or a random.py.
    name = path.stem
    if name in sys.modules:
        name = f"{name}_{zlib.crc32(str(path).encode()):08x}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise FixArgumentsError(f"{field}: {path.name} is not a Python file.")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # for files next to it; last, so that it hides nothing
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        _raise_located(error, field, str(path))
    return module


def _imported(name: str, field: str) -> ModuleType:
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return importlib.import_module(name)
    except BaseException as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            raise FixArgumentsError(
                f"{field}: there is no module {missing!r}. Write 'file.py:function' for a file, or "
                "install the package."
            ) from None
        spec = sys.modules.get(name) or importlib.util.find_spec(name)
        _raise_located(error, field, str(getattr(spec, "origin", "") or ""))


def _raise_located(error: BaseException, field: str, file: str) -> NoReturn:
    """Raises an error about a Python file that cannot be imported, with the line."""
    if not isinstance(error, Exception | SystemExit):
        raise error
    if isinstance(error, BevelError):
        raise error
    if isinstance(error, SyntaxError):
        place = f"{Path(error.filename or file).name}, line {error.lineno}"
        code = in_one_line(error.text or "", 80)
        raise FixArgumentsError(f"{field}: syntax error at {place}: {error.msg}: {code}") from None
    advice = ""
    if isinstance(error, ModuleNotFoundError):
        is_framework = (error.name or "").split(".")[0] in _FRAMEWORKS
        advice = ". " + ("Run: pip install 'bevel[frameworks]'" if is_framework else "Install it")
        advice += ", or check the name."
    raise FixArgumentsError(
        f"{field}: importing it raised {type(error).__name__}{place_of(error, file)}: "
        f"{in_one_line(error)}{advice}"
    ) from error


def place_of(error: BaseException, file: str) -> str:
    """' at model.py, line 12': the last line of the user's folder that led to the error."""
    folder = os.path.dirname(os.path.abspath(file))
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if os.path.dirname(os.path.abspath(f.filename)) == folder]
    return f" at {os.path.basename(own[-1].filename)}, line {own[-1].lineno}" if own else ""
