"""Draws which part of an array each device of the mesh holds, one small SVG per sharding.

The charts are drawn from run.json, so looking at a run needs none of its devices.
"""

import dataclasses
import html
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

CELL_WIDTH, CELL_HEIGHT, GAP, NAMES = 46, 26, 3, 18
MOST_DEVICES = 256
TINTS = 8  # classes t0 to t7 of the style sheet


@dataclasses.dataclass(frozen=True)
class _MeshLayoutChart:
    """The arrays that are sharded over the same mesh axes, and their chart."""

    axes: tuple[str, ...]
    arrays: int
    bytes: int
    svg: str

    @property
    def title(self) -> str:
        return f"sharded over {' and '.join(self.axes)}" if self.axes else "replicated"


def layouts(rows: Sequence[Mapping[str, Any]], mesh: Mapping[str, int]) -> list[_MeshLayoutChart]:
    """One chart per sharding, the one with the most bytes first. Empty for a large mesh."""
    if not mesh or math.prod(mesh.values()) > MOST_DEVICES:
        return []
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        if str(row.get("spec", "")).startswith("P("):
            groups.setdefault(axes_of(str(row["spec"]), mesh), []).append(row)
    charts = [
        _MeshLayoutChart(
            axes, len(group), sum(row.get("bytes") or 0 for row in group), _draw(axes, mesh)
        )
        for axes, group in groups.items()
    ]
    return sorted(charts, key=lambda layout: (-layout.bytes, layout.axes))


def axes_of(spec: str, mesh: Mapping[str, int]) -> tuple[str, ...]:
    """The mesh axes that a spec names, in the order of the mesh."""
    named = set(re.findall(r"'([^']*)'", spec))
    return tuple(name for name in mesh if name in named)


def parts(axes: Sequence[str], mesh: Mapping[str, int]) -> list[int]:
    """The number of the part that each device holds, with devices in the order of the mesh."""
    numbers = []
    for device in itertools.product(*(range(size) for size in mesh.values())):
        number = 0
        for (name, size), index in zip(mesh.items(), device, strict=True):
            number = number * size + index if name in axes else number
        numbers.append(number)
    return numbers


def _draw(axes: Sequence[str], mesh: Mapping[str, int]) -> str:
    """The mesh as a grid, with the last axis across and all others down."""
    *down, across = mesh.items()
    columns = across[1]
    held = parts(axes, mesh)
    rows = len(held) // columns
    cells = []
    for device, part in enumerate(held):
        x = NAMES + device % columns * (CELL_WIDTH + GAP)
        y = NAMES + device // columns * (CELL_HEIGHT + GAP)
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
    # Axis labels may be longer than the grid.
    label_width = max(len(f"{across[0]} = {columns} →"), 8) * 7
    width = NAMES + max(columns * (CELL_WIDTH + GAP), label_width)
    letters = len(", ".join(f"{name} = {size}" for name, size in down)) + 2 if down else 0
    height = NAMES + max(rows * (CELL_HEIGHT + GAP), letters * 7)
    label = f"the mesh, {' by '.join(f'{name} {size}' for name, size in mesh.items())}: " + (
        "each cell shows which part its device holds" if axes else "every device holds a full copy"
    )
    return (
        f'<svg class="mesh" role="img" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" aria-label="{html.escape(label, quote=True)}">{"".join(cells)}{names}'
        "</svg>"
    )
