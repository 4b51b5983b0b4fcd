"""Padded sizes of a sampler's batches, so that compiled programs have static shapes."""

from typing import Any

from bevel.batch_selection import FixedBatchSampling, PaddedSizes, padded_sizes


def sizes_for(sampler: Any, expected_batch_size: float, multiple: int, count: int) -> PaddedSizes:
    """Returns padded sizes: one for fixed-size batches, none above that of truncated batches."""
    spread = 0 if isinstance(sampler, FixedBatchSampling) else None
    sizes = padded_sizes(expected_batch_size, multiple=multiple, count=count, spread=spread)
    truncated = getattr(sampler, "truncated_batch_size", None)
    if truncated is None:
        return sizes
    largest = -(-truncated // multiple) * multiple
    return PaddedSizes((*(s for s in sizes.sizes if s < largest), largest), multiple)
