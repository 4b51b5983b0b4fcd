"""Lay out the shards of an array of any rank as two-dimensional grids of blocks."""

import dataclasses
import itertools
import math

from bevel.inspection.leaf_shardings import LeafSharding

Range = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Grid:
    """One slice of an array: its blocks by row and column, and the ids of the devices of each.

    `rows` and `columns` are the index ranges of the blocks in the two drawn dimensions.
    """

    title: str
    rows: tuple[Range, ...]
    columns: tuple[Range, ...]
    devices: tuple[tuple[tuple[int, ...], ...], ...]


def drawn_dimensions(ranges: list[list[Range]]) -> tuple[int, ...]:
    """The two dimensions to draw: split dimensions are preferred, then later ones."""
    order = sorted(range(len(ranges)), key=lambda d: (len(ranges[d]) > 1, d), reverse=True)
    return tuple(sorted(order[:2]))


def grids(leaf: LeafSharding, max_slices: int = 16) -> tuple[list[Grid], int]:
    """The slices of an array that differ in their devices, and how many exceed `max_slices`.

    A grid draws two dimensions, and there is one for each block of the others. If at most two
    dimensions are split, one grid shows everything.
    """
    devices_by_block: dict[tuple[Range, ...], list[int]] = {}
    for device, index in leaf.indices().items():
        block = tuple(s.indices(size)[:2] for s, size in zip(index, leaf.shape, strict=True))
        devices_by_block.setdefault(block, []).append(getattr(device, "id", device))
    ranges = [sorted({block[d] for block in devices_by_block}) for d in range(len(leaf.shape))]
    drawn = drawn_dimensions(ranges)
    others = [d for d in range(len(ranges)) if d not in drawn]
    rows, columns = ([[(0, 1)], [(0, 1)], *(ranges[d] for d in drawn)])[-2:]

    def grid(fixed: dict[int, Range]) -> Grid:
        def devices(row: Range, column: Range) -> tuple[int, ...]:
            varying = dict(zip(drawn, (row, column)[2 - len(drawn) :], strict=True))
            block = tuple((fixed | varying)[d] for d in range(len(ranges)))
            return tuple(sorted(devices_by_block.get(block, ())))

        cells = tuple(tuple(devices(row, column) for column in columns) for row in rows)
        return Grid(_slice_title(leaf.shape, drawn, fixed), tuple(rows), tuple(columns), cells)

    blocks = itertools.islice(itertools.product(*(ranges[d] for d in others)), max_slices)
    found = [grid(dict(zip(others, block, strict=True))) for block in blocks]
    return found, math.prod(len(ranges[d]) for d in others) - len(found)


def _slice_title(shape: tuple[int, ...], drawn: tuple[int, ...], fixed: dict[int, Range]) -> str:
    """The drawn slice as an index expression; empty for arrays of at most two dimensions."""
    if len(shape) <= 2:
        return ""
    parts = dict(zip(drawn, ("rows", "columns"), strict=True))
    for d, (start, stop) in fixed.items():
        parts[d] = ":" if (start, stop) == (0, shape[d]) else f"{start}:{stop}"
    return f"[{', '.join(parts[d] for d in range(len(shape)))}]"


def number_ranges(numbers: tuple[int, ...]) -> str:
    """Sorted numbers with runs abbreviated: 0-3,6."""
    runs = itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    ends = [[n for _, n in run] for _, run in runs]
    return ",".join(
        f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in ends
    )
