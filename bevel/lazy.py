"""Imports on first use: optax, SciPy, dp-accounting and Pallas take seconds to load."""

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bevel.errors import InstallExtraError

# The optional packages that bevel imports, and the extra that installs each.
_EXTRAS = dict.fromkeys(
    ["grain", "jinja2", "matplotlib", "orbax", "PIL", "pyarrow", "safetensors", "sklearn"],
    "train",
) | dict.fromkeys(["equinox", "flax", "keras"], "frameworks")


def lazy_exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """The `__getattr__`, `__dir__` and `__all__` of a package.

    The exports are the imports in the package's `__init__.pyi`, in their order, so type checkers
    see the same names. An export with the name of a module of the package is imported at once,
    because importing the module would otherwise hide it.
    """
    module = sys.modules[package]
    path = Path(str(module.__file__)).with_suffix(".pyi")
    stub = ast.parse(path.read_text())
    source_of = {
        alias.name: str(node.module)
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    def load(name: str) -> Any:
        if name not in source_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        source = source_of[name]
        if source == package:
            return importlib.import_module(f"{package}.{name}")
        try:
            value = getattr(importlib.import_module(source), name)
        except ModuleNotFoundError as error:
            raise missing_extra(error, f"{package}.{name}") or error from None
        setattr(module, name, value)
        return value

    def listed() -> list[str]:
        dunders = [name for name in vars(module) if name.startswith("__")]
        return sorted({*dunders, *module.__all__})

    for name, source in source_of.items():
        if source != package and path.with_name(f"{name}.py").exists():
            load(name)
    return load, listed, list(source_of)


def missing_extra(error: ModuleNotFoundError, needed_by: str) -> InstallExtraError | None:
    """The error that says how to install what is missing. None if bevel has no extra for it."""
    missing = (error.name or "").partition(".")[0]
    if missing not in _EXTRAS:
        return None
    return InstallExtraError(
        f"{needed_by} needs {missing}, which is not installed: pip install "
        f"'bevel[{_EXTRAS[missing]}]'.",
        name=missing,
    )


def optional_module(name: str, needed_by: str) -> Any:
    """Imports an optional package. Raises `InstallExtraError` if it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise missing_extra(error, needed_by) or error from None


class LazyModule:
    """A module that is imported when one of its attributes is read. False if that fails."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)

    def __bool__(self) -> bool:
        try:
            importlib.import_module(self._name)
        except ImportError:
            return False
        return True
