"""Whose line of Python stands behind an instruction.

JAX notes the stack of Python calls for every operation, and compiled text carries it: in newer XLA
as tables of files, functions, places and frames at the top, in older as `source_file` and
`source_line`. The user's line is the innermost one that is in no library.

`keep_line` is for programs that bevel evaluates again. This file and `divisibility.py`
are the only ones that touch `jax._src`. Tested on jax 0.10.2, 0.11.2 and 0.12.0.
"""

import contextlib
import dataclasses
import functools
import re
from pathlib import Path
from typing import Any

from jax._src import source_info_util as _source_info

OWN = str(Path(__file__).resolve().parents[1])


def keep_line(eqn: Any) -> contextlib.AbstractContextManager[None]:
    """What is traced inside counts as written where `eqn` was: `jax.core.eval_jaxpr` does so too.

    Where a future JAX lacks a name, lines are those of bevel.
    """
    if not hasattr(_source_info, "user_context") or not hasattr(_source_info, "current_name_stack"):
        return contextlib.nullcontext()
    names = _source_info.current_name_stack() + eqn.source_info.name_stack
    return _source_info.user_context(eqn.source_info.traceback, name_stack=names)


@dataclasses.dataclass(frozen=True)
class SourceLine:
    """A place in a source file."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        path = Path(self.file)
        with contextlib.suppress(ValueError):
            path = path.relative_to(Path.cwd())
        return f"{path}:{self.line}"

    @property
    def of_bevel(self) -> bool:
        return self.file.startswith(OWN)

    @property
    def of_library(self) -> bool:
        return self.of_bevel or "site-packages" in self.file or self.file.startswith("<")


def line_of(eqn: Any) -> SourceLine | None:
    """The user's line of an equation."""
    frames = getattr(_source_info, "user_frames", lambda traceback: ())
    stack = [
        SourceLine(f.file_name, f.start_line, f.function_name)
        for f in frames(eqn.source_info.traceback)
    ]
    return users(stack)


def users(stack: list[SourceLine]) -> SourceLine | None:
    """The user's line of a stack, innermost first."""
    for unwanted in ("of_library", "of_bevel"):
        for line in stack:
            if not getattr(line, unwanted):
                return line
    return stack[0] if stack else None


@dataclasses.dataclass(frozen=True)
class SourceLines:
    """The tables at the top of a compiled text."""

    text: str

    @functools.cached_property
    def tables(self) -> dict[str, dict[int, str]]:
        found: dict[str, dict[int, str]] = {}
        for name in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
            rows = re.search(rf"^{name}\n((?:\d+ .*\n)*)", self.text, re.M)
            listed = (row.split(" ", 1) for row in rows[1].splitlines()) if rows else ()
            found[name] = {int(number): rest.strip('"') for number, rest in listed}
        return found

    def stack(self, metadata: str) -> list[SourceLine]:
        """The frames behind `metadata={...}`, innermost first."""
        known = re.search(r"stack_frame_id=(\d+)", metadata)
        if known:
            return self.frames(int(known[1]))
        file = re.search(r'source_file="([^"]*)"', metadata)
        line = re.search(r"source_line=(\d+)", metadata)
        return [SourceLine(file[1], int(line[1]) if line else 0)] if file else []

    def frames(self, frame: int) -> list[SourceLine]:
        found = []
        while frame in self.tables["StackFrames"]:
            place, parent = map(int, re.findall(r"=(\d+)", self.tables["StackFrames"][frame]))
            values = dict(re.findall(r"(\w+)=(\d+)", self.tables["FileLocations"][place]))
            found.append(
                SourceLine(
                    self.tables["FileNames"][int(values["file_name_id"])],
                    int(values["line"]),
                    self.tables["FunctionNames"][int(values["function_name_id"])],
                )
            )
            # The text counts parents from one more: the outermost frame is its own parent.
            frame = parent - 1
        return found

    def of(self, metadata: str) -> SourceLine | None:
        """The user's line."""
        return users(self.stack(metadata))
