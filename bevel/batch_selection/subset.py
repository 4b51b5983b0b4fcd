"""Uniformly random subsets of a range, drawn without a pass over the range."""

from collections.abc import Callable

import numpy as np

from bevel.errors import FixArgumentsError

# A part with at most this many members is drawn at once. Changing this would change every draw.
LEAF = 1024
# numpy.random.Generator.hypergeometric takes arguments below 10**9, and each is half a range.
LARGEST_RANGE = 2 * (10**9 - 1)


def subset_rows(
    size: int, count: int, start: int, stop: int, stream: Callable[[int], np.random.Generator]
) -> np.ndarray:
    """Returns rows `start` to `stop` of a sorted random subset of `range(size)`.

    The subset has `count` members and all such subsets are equally likely. The range is halved
    recursively: the number of members in the first half is hypergeometric, and given that number
    the halves are independent. Each part has a separate stream, `stream(part)`, so the same rows
    are drawn by every process. Parts outside the requested rows are never visited, so the cost
    depends on the number of rows and not on `size`.
    """
    if size > LARGEST_RANGE:
        raise FixArgumentsError(
            f"{size} examples: NumPy can draw subsets of at most {LARGEST_RANGE}. Sample groups of "
            "examples, or split the data set."
        )
    pieces = [np.empty(0, np.int64)]
    parts = [(1, 0, size, 0, count)]  # part, first element, length, rows before it, rows in it
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
