"""Draw which devices hold which part of an array, as text or SVG."""

import dataclasses
import html
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from jax.sharding import NamedSharding

from bevel.errors import FixArgumentsError
from bevel.inspection import svg
from bevel.inspection.blocks import Grid, grids, number_ranges
from bevel.inspection.leaf_shardings import COMPILER_DECIDES, LeafSharding, leaf_shardings
from bevel.sharding.tables import shown_shape, shown_spec

MAX_SLICES = 16


class _Picture(NamedTuple):
    """One array: a title, its slices, and a note on what is not drawn."""

    title: str
    slices: tuple[Grid, ...]
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Drawing:
    """Pictures of the arrays of a tree. Print it as text; notebooks display the SVG."""

    pictures: tuple[_Picture, ...]

    def __str__(self) -> str:
        return "\n".join(line for picture in self.pictures for line in _text_lines(picture))

    @property
    def svg(self) -> str:
        """One self-contained SVG for a file, an `<img>` or inline use, in light and dark themes."""
        return svg.stacked(self.pictures)

    @property
    def html(self) -> str:
        """A complete page with the SVG, and the text as an alternative."""
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
        """Writes a file in the format of its suffix: .svg, .html or .txt."""
        forms = {".svg": lambda: self.svg, ".html": lambda: self.html, ".txt": lambda: str(self)}
        file = Path(path)
        if file.suffix not in forms:
            raise FixArgumentsError(
                f"{str(file)!r} does not end in {', '.join(forms)}: the suffix sets the format."
            )
        file.write_text(forms[file.suffix](), encoding="utf-8")


def visualize(tree: Any, show: Callable[[Drawing], Any] | None = None) -> Drawing:
    """Draws which devices hold which part of each array, for arrays of any rank.

    Two dimensions are drawn, split ones if possible. If more are split, there is one picture for
    each block of the others, up to 16. A cell lists the ids of all devices that hold that part.

    The arguments, and the behaviour inside `jit`, are those of `describe`.
    """

    def report(leaves: list[LeafSharding]) -> None:
        (show or print)(Drawing(tuple(map(_picture_of, leaves))))

    leaves = leaf_shardings(tree, report)
    drawing = Drawing(tuple(map(_picture_of, leaves)))
    if show is not None and all(leaf.note != COMPILER_DECIDES for leaf in leaves):
        show(drawing)
    return drawing


def _picture_of(leaf: LeafSharding) -> _Picture:
    title = " ".join(filter(None, [leaf.path, shown_shape(leaf.shape), leaf.dtype]))
    if isinstance(leaf.sharding, NamedSharding):
        axes = ", ".join(f"{name}={size}" for name, size in leaf.sharding.mesh.shape.items())
        title += f"  {shown_spec(leaf.sharding.spec)} on {axes}"
    if leaf.sharding is None:
        return _Picture(title, (), leaf.note)
    slices, hidden = grids(leaf, MAX_SLICES)
    note = "; ".join(filter(None, [leaf.note, f"{hidden} more slices" if hidden else ""]))
    return _Picture(title, tuple(slices), note)


def _text_lines(picture: _Picture) -> list[str]:
    lines = [picture.title]
    for grid in picture.slices:
        lines += [grid.title] if grid.title else []
        lines += _grid_lines(grid)
    return lines + ([f"({picture.note})"] if picture.note else [])


def _grid_lines(grid: Grid) -> list[str]:
    """Draws a grid in box characters, with the devices of each block in its cell."""
    labels = [[f" {number_ranges(cell)} " for cell in row] for row in grid.devices]
    width = max(5, max(len(label) for row in labels for label in row))

    def rule(left: str, between: str, right: str) -> str:
        return left + between.join(["─" * width] * len(grid.columns)) + right

    lines = [rule("┌", "┬", "┐")]
    for i, row in enumerate(labels):
        lines += [rule("├", "┼", "┤")] if i else []
        lines.append("│" + "│".join(label.center(width) for label in row) + "│")
    return [*lines, rule("└", "┴", "┘")]
