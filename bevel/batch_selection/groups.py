"""Partitions of the examples into random groups, none of which is stored.

The examples are put into a random order by a keyed permutation, and a group is a part of it. Any
members of any group are computed directly, in a time that does not depend on the number of
examples.
"""

import dataclasses
import enum

import numpy as np

from bevel.batch_selection.binomial import binomial
from bevel.batch_selection.permutation import KeyedPermutation
from bevel.batch_selection.randomness import SamplingPurpose, derived_key, uniforms
from bevel.errors import FixArgumentsError


class PartitionType(enum.Enum):
    """How examples are assigned to cyclic groups."""

    INDEPENDENT = enum.auto()  # each example gets a random group, independently
    EQUAL_SPLIT = enum.auto()  # random groups of equal size; the remainder is dropped


@dataclasses.dataclass(frozen=True)
class RandomGroup:
    """`size` examples, from position `start` of a random order of all examples."""

    order: KeyedPermutation
    start: int
    size: int

    def members(self, positions: np.ndarray) -> np.ndarray:
        """Returns the members at these positions, from 0 to `size - 1`, of the group."""
        return self.order(self.start + positions)


def independent_group(num_examples: int, count: int, group: int, seed: int) -> RandomGroup:
    """Returns one of `count` groups, to which each example belongs with the same probability.

    Examples are independent. Then the sizes of the groups are multinomial, and given the sizes, all
    partitions are equally likely. The groups are halved repeatedly: the number of examples in the
    first half is binomial. Takes about log2(count) such numbers.
    """
    start, size, half = 0, num_examples, 1  # `half` numbers the halves, as in a binary heap
    first, stop = 0, count
    while stop - first > 1:
        middle = (first + stop) // 2
        chance = (middle - first) / (stop - first)
        left = binomial(size, chance, uniforms(seed, SamplingPurpose.GROUPS, half))
        if group < middle:
            stop, size, half = middle, left, 2 * half
        else:
            first, start, size, half = middle, start + left, size - left, 2 * half + 1
    return RandomGroup(_order(num_examples, seed), start, size)


def equal_group(num_examples: int, count: int, group: int, seed: int) -> RandomGroup:
    """Returns one of `count` groups of `num_examples // count` examples.

    All such partitions are equally likely.
    """
    size = num_examples // count
    if size == 0 and num_examples > 0:
        raise FixArgumentsError(
            f"cycle_length={count} with {num_examples} examples: an equal split leaves every group "
            "empty. Use a smaller cycle_length, or PartitionType.INDEPENDENT."
        )
    return RandomGroup(_order(num_examples, seed), group * size, size)


def _order(num_examples: int, seed: int) -> KeyedPermutation:
    return KeyedPermutation(num_examples, derived_key(seed, SamplingPurpose.GROUPS))
