"""Names of a package that are loaded when first used: some dependencies take seconds to import."""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def loaded_when_used(
    package: str, module_of: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package, from each name to the module that has it."""

    def load(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{module_of[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return load, lambda: sorted([*vars(sys.modules[package]), *module_of])
