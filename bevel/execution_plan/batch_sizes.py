"""Static shapes for the batches of a sampler."""

from typing import Any

from bevel.batch_selection import FixedBatchSampling, PaddedSizes, padded_sizes


def sizes_for(sampler: Any, expected_batch_size: float, multiple: int, count: int) -> PaddedSizes:
    """A few sizes that its batches are padded to: one for batches of one size, none above a cap."""
    spread = 0 if isinstance(sampler, FixedBatchSampling) else None
    sizes = padded_sizes(expected_batch_size, multiple=multiple, count=count, spread=spread)
    most = getattr(sampler, "truncated_batch_size", None)
    if most is None:
        return sizes
    largest = -(-most // multiple) * multiple
    return PaddedSizes((*(s for s in sizes.sizes if s < largest), largest), multiple)
