"""Partitions of the examples into groups, drawn once per run."""

import dataclasses
import enum
import functools

import numpy as np

from bevel.batch_selection.randomness import SamplingPurpose, stream
from bevel.errors import FixArgumentsError


class PartitionType(enum.Enum):
    """How examples are assigned to cyclic groups."""

    INDEPENDENT = enum.auto()  # each example gets a random group, independently
    EQUAL_SPLIT = enum.auto()  # random groups of equal size; the remainder is dropped


@dataclasses.dataclass(frozen=True, eq=False)
class ExampleGroups:
    """A partition of examples. Group g is `members[bounds[g]:bounds[g + 1]]`."""

    members: np.ndarray
    bounds: np.ndarray

    def of(self, group: int) -> np.ndarray:
        return self.members[self.bounds[group] : self.bounds[group + 1]]


def index_dtype(size: int) -> np.dtype:
    """int32 if it can index `size` examples, else int64."""
    return np.dtype(np.int32 if size < 2**31 else np.int64)


@functools.lru_cache(maxsize=2)  # each entry holds one index per example
def independent_groups(num_examples: int, count: int, seed: int) -> ExampleGroups:
    """Assigns each example to one of `count` groups, uniformly and independently."""
    labels = stream(seed, SamplingPurpose.GROUPS).integers(count, size=num_examples, dtype=np.int64)
    return grouped(labels, count)


def grouped(labels: np.ndarray, count: int) -> ExampleGroups:
    """Groups the examples by label: example i belongs to group `labels[i]`."""
    if count < 2**15:
        labels = labels.astype(np.int16)  # NumPy sorts 16-bit integers in linear time
    members = np.argsort(labels, kind="stable").astype(index_dtype(len(labels)))
    return ExampleGroups(members, np.cumsum([0, *np.bincount(labels, minlength=count)]))


@functools.lru_cache(maxsize=2)
def equal_groups(num_examples: int, count: int, seed: int) -> ExampleGroups:
    """Draws `count` groups of `num_examples // count` examples, all partitions equally likely."""
    size = num_examples // count
    if size == 0 and num_examples > 0:
        raise FixArgumentsError(
            f"cycle_length={count} with {num_examples} examples: an equal split leaves every group "
            "empty. Use a smaller cycle_length, or PartitionType.INDEPENDENT."
        )
    order = np.arange(num_examples, dtype=index_dtype(num_examples))
    stream(seed, SamplingPurpose.GROUPS).shuffle(order)
    return ExampleGroups(order[: size * count], size * np.arange(count + 1))
