"""Which part of an array each place of the mesh holds, as a small SVG for each way of splitting.

Drawn from what run.json says, so that no devices are needed to look at a run.
"""

import dataclasses
import html
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

CELL_WIDTH, CELL_HEIGHT, GAP, NAMES = 46, 26, 3, 18
MOST_PLACES = 256
TINTS = 8  # classes t0 to t7 of the style sheet


@dataclasses.dataclass(frozen=True)
class _MeshLayoutChart:
    """Arrays that are split over the same axes, and the mesh they lie on."""

    axes: tuple[str, ...]
    arrays: int
    bytes: int
    svg: str

    @property
    def title(self) -> str:
        return f"split over {' and '.join(self.axes)}" if self.axes else "a whole copy everywhere"


def layouts(rows: Sequence[Mapping[str, Any]], mesh: Mapping[str, int]) -> list[_MeshLayoutChart]:
    """The ways in which arrays are split, the one with most bytes first. None for a large mesh."""
    if not mesh or math.prod(mesh.values()) > MOST_PLACES:
        return []
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        if str(row.get("spec", "")).startswith("P("):
            groups.setdefault(axes_of(str(row["spec"]), mesh), []).append(row)
    found = [
        _MeshLayoutChart(
            axes, len(group), sum(row.get("bytes") or 0 for row in group), _drawn(axes, mesh)
        )
        for axes, group in groups.items()
    ]
    return sorted(found, key=lambda layout: (-layout.bytes, layout.axes))


def axes_of(spec: str, mesh: Mapping[str, int]) -> tuple[str, ...]:
    """The axes of the mesh that a spec names, in the order of the mesh."""
    named = set(re.findall(r"'([^']*)'", spec))
    return tuple(name for name in mesh if name in named)


def parts(axes: Sequence[str], mesh: Mapping[str, int]) -> list[int]:
    """The number of the part that each place holds, places in the order of the mesh."""
    found = []
    for place in itertools.product(*(range(size) for size in mesh.values())):
        number = 0
        for (name, size), at in zip(mesh.items(), place, strict=True):
            number = number * size + at if name in axes else number
        found.append(number)
    return found


def _drawn(axes: Sequence[str], mesh: Mapping[str, int]) -> str:
    """The mesh as a grid: the last axis goes across, all others go down."""
    *down, across = mesh.items()
    columns = across[1]
    held = parts(axes, mesh)
    rows = len(held) // columns
    cells = []
    for place, part in enumerate(held):
        x = NAMES + place % columns * (CELL_WIDTH + GAP)
        y = NAMES + place // columns * (CELL_HEIGHT + GAP)
        cells.append(
            f'<rect class="cell t{part % TINTS}" x="{x}" y="{y}" width="{CELL_WIDTH}" '
            f'height="{CELL_HEIGHT}" rx="3"/><text class="part" x="{x + CELL_WIDTH / 2:g}" '
            f'y="{y + CELL_HEIGHT / 2 + 4:g}" text-anchor="middle">'
            f"{part if axes else 'all'}</text>"
        )
    label = html.escape(f"{across[0]} = {columns} →")
    names = f'<text class="tick" x="{NAMES}" y="11">{label}</text>'
    if down:
        label = html.escape("← " + ", ".join(f"{name} = {size}" for name, size in down))
        names += (
            f'<text class="tick" text-anchor="end" x="{-NAMES}" y="11" '
            f'transform="rotate(-90)">{label}</text>'
        )
    # Names of axes may be longer than the grid.
    most = max(len(f"{across[0]} = {columns} →"), 8) * 7
    width = NAMES + max(columns * (CELL_WIDTH + GAP), most)
    named = len(", ".join(f"{name} = {size}" for name, size in down)) + 2 if down else 0
    height = NAMES + max(rows * (CELL_HEIGHT + GAP), named * 7)
    told = f"the mesh, {' by '.join(f'{name} {size}' for name, size in mesh.items())}: " + (
        "each place shows the number of the part that it holds" if axes else "all places hold all"
    )
    return (
        f'<svg class="mesh" role="img" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" aria-label="{html.escape(told, quote=True)}">{"".join(cells)}{names}'
        "</svg>"
    )
