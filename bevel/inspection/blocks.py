"""An array of any rank as flat grids of blocks: each block is held by some devices, and whole."""

import dataclasses
import itertools
import math

from bevel.inspection.leaf_shardings import LeafSharding

Range = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Grid:
    """One slice of an array: blocks by row and column, and the numbers of their devices.

    `rows` and `columns` are the ranges of the two drawn dimensions that the blocks span.
    """

    title: str
    rows: tuple[Range, ...]
    columns: tuple[Range, ...]
    devices: tuple[tuple[tuple[int, ...], ...], ...]


def drawn_dimensions(cuts: list[list[Range]]) -> tuple[int, ...]:
    """The two dimensions to draw: those that are split come first, the last ones before others."""
    order = sorted(range(len(cuts)), key=lambda d: (len(cuts[d]) > 1, d), reverse=True)
    return tuple(sorted(order[:2]))


def grids(where: LeafSharding, most: int = 16) -> tuple[list[Grid], int]:
    """The slices of an array that differ in where they lie, and how many are past `most`.

    Two dimensions are drawn. Past them, there is one slice for each block of the others; where at
    most two dimensions are split, one slice shows all.
    """
    by_box: dict[tuple[Range, ...], list[int]] = {}
    for device, index in where.indices().items():
        box = tuple(_span(part, size) for part, size in zip(index, where.shape, strict=True))
        by_box.setdefault(box, []).append(getattr(device, "id", device))
    cuts = [sorted({box[d] for box in by_box}) for d in range(len(where.shape))]
    drawn = drawn_dimensions(cuts)
    others = [d for d in range(len(cuts)) if d not in drawn]
    rows, columns = ([[(0, 1)], [(0, 1)], *(cuts[d] for d in drawn)])[-2:]

    def slice_at(fixed: dict[int, Range]) -> Grid:
        def owners(row: Range, column: Range) -> tuple[int, ...]:
            ends = (row, column)[2 - len(drawn) :]
            at = fixed | dict(zip(drawn, ends, strict=True))
            return tuple(sorted(by_box.get(tuple(at[d] for d in range(len(cuts))), ())))

        cells = tuple(tuple(owners(row, column) for column in columns) for row in rows)
        return Grid(_slice_title(where.shape, drawn, fixed), tuple(rows), tuple(columns), cells)

    places = itertools.product(*(cuts[d] for d in others))
    found = [slice_at(dict(zip(others, at, strict=True))) for at in itertools.islice(places, most)]
    return found, math.prod(len(cuts[d]) for d in others) - len(found)


def _span(part: slice, size: int) -> Range:
    start, stop, _ = part.indices(size)
    return start, stop


def _slice_title(shape: tuple[int, ...], drawn: tuple[int, ...], fixed: dict[int, Range]) -> str:
    """Which slice is drawn, as an index; nothing where there is only one way to draw."""
    if len(shape) <= 2:
        return ""
    parts = dict(zip(drawn, ("rows", "columns"), strict=True))
    for d, (start, stop) in fixed.items():
        parts[d] = ":" if (start, stop) == (0, shape[d]) else f"{start}:{stop}"
    return f"[{', '.join(parts[d] for d in range(len(shape)))}]"


def number_ranges(numbers: tuple[int, ...]) -> str:
    """Numbers in few characters: 0-3, 6."""
    runs = itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    ends = [[n for _, n in run] for _, run in runs]
    return ",".join(
        f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in ends
    )
