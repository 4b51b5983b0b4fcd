"""A uniformly random subset of a range, of which any rows can be had without the others."""

from collections.abc import Callable

import numpy as np

from bevel.errors import FixArgumentsError

# A part with at most this many members is drawn in one go. Part of the draw: never change it.
LEAF = 1024
# numpy.random.Generator.hypergeometric takes numbers below 10**9, and a range is cut in halves.
LARGEST_RANGE = 2 * (10**9 - 1)


def subset_rows(
    size: int, count: int, start: int, stop: int, stream: Callable[[int], np.random.Generator]
) -> np.ndarray:
    """Rows `start` to `stop` of a sorted random subset of `range(size)` with `count` members.

    All subsets are equally likely. The range is cut in halves again and again: how many of the
    members lie in the first half is hypergeometric, and where they lie is independent of where the
    others do. Every part has a stream of its own, `stream(part)`, so the rows are the same whoever
    asks for them, and parts without a wanted row are never visited: the cost is that of the rows
    that are asked for, whatever `size` is. There is no pass over the range.
    """
    if size > LARGEST_RANGE:
        raise FixArgumentsError(
            f"{size} examples: numpy draws subsets of up to {LARGEST_RANGE}. Sample groups of "
            "examples, or cut the data set into several."
        )
    pieces = [np.empty(0, np.int64)]
    parts = [(1, 0, size, 0, count)]  # a part, where it begins, its size, rows before it, its rows
    while parts:
        part, low, length, before, rows = parts.pop()
        if rows == 0 or before >= stop or before + rows <= start:
            continue
        if rows <= LEAF:
            members = stream(part).choice(length, rows, replace=False, shuffle=False)
            pieces.append(low + np.sort(members)[max(0, start - before) : stop - before])
            continue
        half = length // 2
        left = int(stream(part).hypergeometric(half, length - half, rows))
        parts.append((2 * part + 1, low + half, length - half, before + left, rows - left))
        parts.append((2 * part, low, half, before, left))
    return np.concatenate(pieces)
