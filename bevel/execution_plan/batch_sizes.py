"""Padded sizes of a sampler's batches, so that compiled programs have static shapes."""

from typing import Any

from bevel.batch_selection import FixedBatchSampling, PaddedSizes, padded_sizes


def sizes_for(
    sampler: Any, expected_batch_size: float, num_units: int | None, multiple: int, count: int
) -> PaddedSizes:
    """Returns padded sizes: one for fixed-size batches, none above the largest possible batch."""
    spread = 0 if isinstance(sampler, FixedBatchSampling) else None
    sizes = padded_sizes(expected_batch_size, multiple=multiple, count=count, spread=spread)
    truncated = getattr(sampler, "truncated_batch_size", None)
    if truncated is not None:
        sizes = _up_to(truncated, sizes)
    if num_units is not None and sizes.sizes[-1] > num_units:
        sizes = _up_to(num_units, sizes)
    return sizes


def _up_to(batch_size: int, sizes: PaddedSizes) -> PaddedSizes:
    largest = -(-batch_size // sizes.multiple) * sizes.multiple
    return PaddedSizes((*(s for s in sizes.sizes if s < largest), largest), sizes.multiple)
