"""Padded batch sizes that need few compilations."""

from collections.abc import Sequence

import numpy as np

from bevel.checks import integers, shown, whole_number
from bevel.errors import FixArgumentsError


def optimal_physical_batch_sizes(batch_sizes: Sequence[int], num_compilations: int) -> set[int]:
    """At most `num_compilations` padded sizes that waste the fewest rows on these batches.

    Every batch is padded to the smallest size that holds it. The sizes of the batches in a run are
    not protected by differential privacy: draw `batch_sizes` from the sampler with another seed, or
    use `bevel.batch_selection.padded_sizes`, which needs no draws.

    Takes O(num_compilations * (number of distinct sizes)^2) time.
    """
    count = whole_number("num_compilations", num_compilations, 1)
    if isinstance(batch_sizes, np.ndarray):
        batch_sizes = integers("batch_sizes", batch_sizes)
    elif not isinstance(batch_sizes, Sequence) or isinstance(batch_sizes, str | bytes):
        raise FixArgumentsError(f"batch_sizes={shown(batch_sizes)}: pass a list of integers.")
    if not len(batch_sizes):
        raise FixArgumentsError("batch_sizes is empty: pass the sizes of some batches.")
    sizes, counts = np.unique(
        [whole_number("batch size", n, 0) for n in batch_sizes], return_counts=True
    )
    # After k rounds, waste[j] is the least waste for the j smallest sizes with k padded sizes.
    batches = np.concatenate([[0], np.cumsum(counts)])
    rows = np.concatenate([[0], np.cumsum(counts * sizes)])
    waste = np.full(len(sizes) + 1, np.inf)
    waste[0] = 0
    first_held = []  # for each j, the first size that the last padded size holds
    for _ in range(min(count, len(sizes))):
        # The last padded size is sizes[j - 1], and holds the sizes from index i on.
        padded = sizes[:, None] * (batches[1:, None] - batches[None, :-1])
        added = padded - (rows[1:, None] - rows[None, :-1])
        total = np.where(np.tri(len(sizes), dtype=bool), waste[None, :-1] + added, np.inf)
        first_held.append(np.argmin(total, axis=1))
        waste = np.concatenate([[np.inf], np.min(total, axis=1)])
    chosen, end = set(), len(sizes)
    for first in reversed(first_held):
        chosen.add(int(sizes[end - 1]))
        end = int(first[end - 1])
        if end == 0:
            break
    return chosen
