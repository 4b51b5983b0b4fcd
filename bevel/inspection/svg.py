"""Draw grids of blocks as one small SVG without scripts or external files.

Its background and text follow the reader's light or dark theme together, so it is readable on any
page. Cells have the colour of their first device, and dark text in both themes.
"""

import html
from collections.abc import Sequence

from bevel.inspection.blocks import Grid, number_ranges

LINE, MARGIN, GAP = 18, 12, 16
CELL_WIDTH, CELL_HEIGHT = 56, 30
LETTER = 6.7  # largest width of a letter at 11 px

STYLE = (
    ".bevel-sharding{font:11px ui-monospace,Menlo,Consolas,monospace}"
    ".bevel-sharding .page{fill:#fff}.bevel-sharding .words{fill:#1f2328}"
    ".bevel-sharding .cell{stroke:#57606a;stroke-width:.75}"
    ".bevel-sharding .ids{fill:#111;text-anchor:middle;dominant-baseline:central}"
    "@media(prefers-color-scheme:dark){.bevel-sharding .page{fill:#161b22}"
    ".bevel-sharding .words{fill:#e6edf3}.bevel-sharding .cell{stroke:#8b949e}}"
)


def stacked(pictures: Sequence[tuple[str, Sequence[Grid], str]]) -> str:
    """Stacks pictures vertically. Each is a title, slices and a note."""
    parts, y, width = list[str](), float(MARGIN), 0.0
    for title, slices, note in pictures:
        width = max(width, len(title) * LETTER, len(note) * LETTER)
        parts.append(_words(title, y))
        y += LINE
        for grid in slices:
            if grid.title:
                parts.append(_words(grid.title, y))
                y += LINE
            drawn, grid_width, height = _cells(grid, y)
            parts += drawn
            y += height + 6
            width = max(width, grid_width, len(grid.title) * LETTER)
        if note:
            parts.append(_words(f"({note})", y))
            y += LINE
        y += GAP - 6
    w, h = round(width + 2 * MARGIN), round(y)
    label = html.escape("; ".join(title for title, _, _ in pictures), quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="bevel-sharding" role="img" '
        f'aria-label="{label}" viewBox="0 0 {w} {h}" width="{w}" height="{h}">'
        f'<style>{STYLE}</style><rect class="page" width="{w}" height="{h}" rx="6"/>'
        f"{''.join(parts)}</svg>"
    )


def _words(text: str, y: float) -> str:
    return f'<text class="words" x="{MARGIN}" y="{y + 11:g}">{html.escape(text)}</text>'


def _cells(grid: Grid, top: float) -> tuple[list[str], float, float]:
    """Draws the cells of a grid. Returns them with its width and height."""
    labels = [[number_ranges(cell) for cell in row] for row in grid.devices]
    longest = max(len(label) for row in labels for label in row)
    width = max(CELL_WIDTH, round(longest * LETTER) + 12)
    cells = []
    for i, row in enumerate(labels):
        for j, label in enumerate(row):
            x, y = MARGIN + j * width, top + i * CELL_HEIGHT
            cells.append(
                f'<rect class="cell" x="{x}" y="{y:g}" width="{width}" height="{CELL_HEIGHT}" '
                f'fill="{colour(grid.devices[i][j])}"/><text class="ids" x="{x + width / 2:g}" '
                f'y="{y + CELL_HEIGHT / 2:g}">{label}</text>'
            )
    return cells, width * len(grid.columns), CELL_HEIGHT * len(grid.rows)


def colour(devices: Sequence[int]) -> str:
    """A light colour for dark text. Hues advance by the golden angle, so neighbours differ."""
    hue = round(devices[0] * 137.508) % 360 if devices else 0
    return f"hsl({hue},60%,78%)"
