"""Examples put into groups, once for a whole run."""

import dataclasses
import enum
import functools

import numpy as np

from bevel.batch_selection.randomness import SamplingPurpose, stream
from bevel.errors import FixArgumentsError


class PartitionType(enum.Enum):
    """How examples are put into cyclic groups."""

    INDEPENDENT = enum.auto()  # each into a random group, whatever the others do
    EQUAL_SPLIT = enum.auto()  # into groups of one size at random; what is left over is dropped


@dataclasses.dataclass(frozen=True, eq=False)
class ExampleGroups:
    """A partition of examples: group g is `members[bounds[g]:bounds[g + 1]]`."""

    members: np.ndarray
    bounds: np.ndarray

    def of(self, group: int) -> np.ndarray:
        return self.members[self.bounds[group] : self.bounds[group + 1]]


def index_dtype(size: int) -> np.dtype:
    """The smaller of int32 and int64 that counts `size` examples."""
    return np.dtype(np.int32 if size < 2**31 else np.int64)


@functools.lru_cache(maxsize=2)  # each holds an index per example
def independent_groups(num_examples: int, count: int, seed: int) -> ExampleGroups:
    """Every example in one of `count` groups, each equally likely, independently of the others."""
    group = stream(seed, SamplingPurpose.GROUPS).integers(count, size=num_examples, dtype=np.int64)
    return grouped(group, count)


def grouped(group: np.ndarray, count: int) -> ExampleGroups:
    """The groups of examples, from the group of each."""
    if count < 2**15:
        group = group.astype(np.int16)  # sorted in linear time
    members = np.argsort(group, kind="stable").astype(index_dtype(len(group)))
    return ExampleGroups(members, np.cumsum([0, *np.bincount(group, minlength=count)]))


@functools.lru_cache(maxsize=2)
def equal_groups(num_examples: int, count: int, seed: int) -> ExampleGroups:
    """`count` groups of `num_examples // count` examples, every such partition equally likely."""
    size = num_examples // count
    if size == 0 and num_examples > 0:
        raise FixArgumentsError(
            f"cycle_length={count} with {num_examples} examples: an equal split leaves every group "
            "empty. Use a shorter cycle, or PartitionType.INDEPENDENT."
        )
    order = np.arange(num_examples, dtype=index_dtype(num_examples))
    stream(seed, SamplingPurpose.GROUPS).shuffle(order)
    return ExampleGroups(order[: size * count], size * np.arange(count + 1))
