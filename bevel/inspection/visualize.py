"""Pictures of where arrays lie: as text, and as SVG for a page."""

import dataclasses
import html
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jax.sharding import NamedSharding

from bevel.errors import FixArgumentsError
from bevel.inspection import svg
from bevel.inspection.blocks import Grid, grids, number_ranges
from bevel.inspection.leaf_shardings import COMPILER_DECIDES, LeafSharding, leaf_shardings
from bevel.sharding.tables import shown_shape, shown_spec

MOST_SLICES = 16


@dataclasses.dataclass(frozen=True)
class _Picture:
    """One array: a title, its slices, and what is not drawn."""

    title: str
    slices: tuple[Grid, ...]
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Drawing:
    """Pictures of the arrays of a tree. Print it; a notebook shows the SVG."""

    pictures: tuple[_Picture, ...]

    def __str__(self) -> str:
        return "\n".join(line for picture in self.pictures for line in _text_lines(picture))

    @property
    def svg(self) -> str:
        """One self-contained SVG, for a file, an `<img>` or within a page, light or dark."""
        return svg.stacked(
            [(picture.title, picture.slices, picture.note) for picture in self.pictures]
        )

    @property
    def html(self) -> str:
        """A whole page with the SVG and, for readers without pictures, the text."""
        text = html.escape(str(self))
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="color-scheme" content="light dark"><title>Sharding</title></head>\n'
            f"<body>{self.svg}\n<details><summary>As text</summary><pre>{text}</pre></details>"
            "</body></html>\n"
        )

    def _repr_html_(self) -> str:
        return self.svg

    def save(self, path: str | Path) -> None:
        """Writes a file; its ending says what: .svg, .html or .txt."""
        forms = {".svg": lambda: self.svg, ".html": lambda: self.html, ".txt": lambda: str(self)}
        file = Path(path)
        if file.suffix not in forms:
            raise FixArgumentsError(
                f"{str(file)!r} does not end in {', '.join(forms)}: that says what is written."
            )
        file.write_text(forms[file.suffix](), encoding="utf-8")


def visualize(tree: Any, show: Callable[[Drawing], Any] | None = None) -> Drawing:
    """Draws which devices hold which part of each array, of any rank.

    Two dimensions are drawn; those that are split come first. If more are split, there is one
    picture for each block of the others, up to 16. A cell lists the numbers of all devices that
    hold that part.

    Args and what happens inside `jit` are those of `describe`.
    """

    def report(found: list[LeafSharding]) -> None:
        (show or print)(Drawing(tuple(map(_picture_of, found))))

    found = leaf_shardings(tree, report)
    drawing = Drawing(tuple(map(_picture_of, found)))
    if show is not None and all(where.note != COMPILER_DECIDES for where in found):
        show(drawing)
    return drawing


def _picture_of(where: LeafSharding) -> _Picture:
    title = " ".join(filter(None, [where.path, shown_shape(where.shape), where.dtype]))
    if isinstance(where.sharding, NamedSharding):
        axes = ", ".join(f"{name}={size}" for name, size in where.sharding.mesh.shape.items())
        title += f"  {shown_spec(where.sharding.spec)} on {axes}"
    if where.sharding is None:
        return _Picture(title, (), where.note)
    slices, hidden = grids(where, MOST_SLICES)
    note = "; ".join(filter(None, [where.note, f"{hidden} more slices" if hidden else ""]))
    return _Picture(title, tuple(slices), note)


def _text_lines(picture: _Picture) -> list[str]:
    lines = [picture.title]
    for grid in picture.slices:
        lines += [grid.title] if grid.title else []
        lines += _grid_lines(grid)
    return lines + ([f"({picture.note})"] if picture.note else [])


def _grid_lines(grid: Grid) -> list[str]:
    """A grid in box characters, the devices of each block in the middle."""
    labels = [[f" {number_ranges(cell)} " for cell in row] for row in grid.devices]
    width = max(5, max(len(label) for row in labels for label in row))

    def rule(left: str, between: str, right: str) -> str:
        return left + between.join(["─" * width] * len(grid.columns)) + right

    lines = [rule("┌", "┬", "┐")]
    for i, row in enumerate(labels):
        lines += [rule("├", "┼", "┤")] if i else []
        lines.append("│" + "│".join(label.center(width) for label in row) + "│")
    return [*lines, rule("└", "┴", "┘")]
