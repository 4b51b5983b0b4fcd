"""Fills the templates of the report, and writes pages to disk."""

import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from bevel.errors import FixArgumentsError, FixStorageError
from bevel.training.folder import NO_TIME, write_atomically

STYLE = "page.css"


def render(template: str, content: Mapping[str, Any]) -> str:
    """The page of a template in this package, with the style sheet inside."""
    try:
        from jinja2 import Environment, FunctionLoader, StrictUndefined
    except ImportError as error:
        raise FixArgumentsError("a report needs jinja2: run pip install 'bevel[train]'.") from error
    environment = Environment(
        loader=FunctionLoader(_read_resource),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(content, style=_read_resource(STYLE))


def _read_resource(name: str) -> str:
    return (resources.files("bevel.report") / name).read_text(encoding="utf-8")


def write_page(target: Path, text: str, *, private: bool, released: Path | None = None) -> Path:
    """Writes a page. In the folder `released` its time is that of every released file."""
    try:
        write_atomically(target, text, private=private)
        if released is not None and target.parent.resolve() == released.resolve():
            for path in (target, target.parent):
                os.utime(path, (NO_TIME, NO_TIME))
    except (OSError, FixStorageError) as error:
        raise FixArgumentsError(
            f"the report cannot be written to {target} ({error}): pass another output."
        ) from error
    return target
