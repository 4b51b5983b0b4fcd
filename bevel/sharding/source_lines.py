"""Find the line of the user's code that an operation or HLO instruction comes from.

JAX records the Python stack of every operation, and the text of a compiled program contains it:
newer versions of XLA write tables of files, functions, locations and frames at the top, older ones
write `source_file` and `source_line`. The user's line is the innermost one outside of libraries.

Only this file and `divisibility.py` use `jax._src`. Tested with JAX 0.10.2, 0.11.2 and 0.12.0.
"""

import contextlib
import dataclasses
import functools
import re
from pathlib import Path
from typing import Any

from jax._src import source_info_util as _source_info

BEVEL_FOLDER = str(Path(__file__).resolve().parents[1])


def keep_line(eqn: Any) -> contextlib.AbstractContextManager[None]:
    """Gives operations that are traced inside the source line of `eqn`.

    bevel uses it where it evaluates a program again, like `jax.core.eval_jaxpr`. If a later version
    of JAX lacks one of the names, lines of bevel are recorded instead.
    """
    if not hasattr(_source_info, "user_context") or not hasattr(_source_info, "current_name_stack"):
        return contextlib.nullcontext()
    names = _source_info.current_name_stack() + eqn.source_info.name_stack
    return _source_info.user_context(eqn.source_info.traceback, name_stack=names)


@dataclasses.dataclass(frozen=True)
class SourceLine:
    """A line of a source file."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        path = Path(self.file)
        with contextlib.suppress(ValueError):
            path = path.relative_to(Path.cwd())
        return f"{path}:{self.line}"

    @property
    def in_bevel(self) -> bool:
        return self.file.startswith(BEVEL_FOLDER)

    @property
    def in_library(self) -> bool:
        return self.in_bevel or "site-packages" in self.file or self.file.startswith("<")


def line_of(eqn: Any) -> SourceLine | None:
    """The user's line of an equation, or None."""
    frames = getattr(_source_info, "user_frames", lambda traceback: ())
    stack = [
        SourceLine(f.file_name, f.start_line, f.function_name)
        for f in frames(eqn.source_info.traceback)
    ]
    return user_line(stack)


def user_line(stack: list[SourceLine]) -> SourceLine | None:
    """The user's line of a stack, whose innermost frame comes first."""
    for unwanted in ("in_library", "in_bevel"):
        for line in stack:
            if not getattr(line, unwanted):
                return line
    return stack[0] if stack else None


@dataclasses.dataclass(frozen=True)
class SourceLines:
    """The source lines in the text of a compiled program."""

    text: str

    @functools.cached_property
    def tables(self) -> dict[str, dict[int, str]]:
        tables: dict[str, dict[int, str]] = {}
        for name in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
            rows = re.search(rf"^{name}\n((?:\d+ .*\n)*)", self.text, re.M)
            entries = (row.split(" ", 1) for row in rows[1].splitlines()) if rows else ()
            tables[name] = {int(number): rest.strip('"') for number, rest in entries}
        return tables

    def stack(self, metadata: str) -> list[SourceLine]:
        """The frames behind `metadata={...}`, innermost first."""
        frame = re.search(r"stack_frame_id=(\d+)", metadata)
        if frame:
            return self.frames(int(frame[1]))
        file = re.search(r'source_file="([^"]*)"', metadata)
        line = re.search(r"source_line=(\d+)", metadata)
        return [SourceLine(file[1], int(line[1]) if line else 0)] if file else []

    def frames(self, frame: int) -> list[SourceLine]:
        found = []
        while frame in self.tables["StackFrames"]:
            location, parent = map(int, re.findall(r"=(\d+)", self.tables["StackFrames"][frame]))
            values = dict(re.findall(r"(\w+)=(\d+)", self.tables["FileLocations"][location]))
            found.append(
                SourceLine(
                    self.tables["FileNames"][int(values["file_name_id"])],
                    int(values["line"]),
                    self.tables["FunctionNames"][int(values["function_name_id"])],
                )
            )
            # Parent numbers are one too large, and the outermost frame is its own parent.
            frame = parent - 1
        return found

    def of(self, metadata: str) -> SourceLine | None:
        """The user's line for `metadata={...}`, or None."""
        return user_line(self.stack(metadata))
