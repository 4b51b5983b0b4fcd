"""Imports on first use: optax, SciPy, dp-accounting and Pallas take up to seconds to load."""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_exports(
    package: str, names: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """The `__getattr__`, `__dir__` and `__all__` of a package.

    Args:
      package: its `__name__`.
      names: from each module to the names that it exports. Modules are absolute, or relative to the
        package if they start with a dot. The key "." lists submodules that are themselves exported.
    """
    module_of = {name: module for module, exported in names.items() for name in exported}

    def load(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if module_of[name] == ".":
            return importlib.import_module(f".{name}", package)
        value = getattr(importlib.import_module(module_of[name], package), name)
        setattr(sys.modules[package], name, value)
        return value

    def listed() -> list[str]:
        dunders = [name for name in vars(sys.modules[package]) if name.startswith("__")]
        return sorted([*dunders, *sys.modules[package].__all__])

    return load, listed, list(module_of)


class LazyModule:
    """A module that is imported when one of its attributes is read. False if it cannot be."""

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
