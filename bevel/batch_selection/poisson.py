"""Poisson sampling, optionally over cyclic groups and with truncated batches."""

import dataclasses
import math

import numpy as np

from bevel.batch_selection.binomial import binomial
from bevel.batch_selection.groups import (
    PartitionType,
    RandomGroup,
    equal_group,
    independent_group,
)
from bevel.batch_selection.permutation import KeyedPermutation
from bevel.batch_selection.proven_event import (
    ALL_RELATIONS,
    REPLACE_SPECIAL,
    SAME_SIZE,
    Participation,
    ProvenEvent,
)
from bevel.batch_selection.randomness import SamplingPurpose, derived_key, uniforms
from bevel.batch_selection.sampler import RandomAccessSampler
from bevel.checks import finite_number, instance, probability, whole_number
from bevel.errors import FixArgumentsError


@dataclasses.dataclass(frozen=True)
class CyclicPoissonSampling(RandomAccessSampler):
    """Each example of a group joins the batch independently, with probability `sampling_prob`.

    With `cycle_length=1` all examples form one group: the Poisson sampling of DP-SGD. Otherwise the
    examples are split once into `cycle_length` groups, and step t samples from group
    t % cycle_length.

    | option                 | effect                                                           |
    | ---------------------- | ---------------------------------------------------------------- |
    | `truncated_batch_size` | a larger batch keeps a uniformly random subset of this size      |
    | `EQUAL_SPLIT`          | groups of equal size; fewer than `cycle_length` examples unused  |
    | `INDEPENDENT`          | groups of binomial size; no example is left out                  |

    Cost: drawing a batch takes time and memory proportional to the batch size, not to the number of
    examples (1e4 of 1e12 examples in a few milliseconds), and nothing is drawn at the start.
    Without truncation, batch sizes are binomial: pad them with `padded_sizes`, and never drop,
    redraw or skip a batch because of its size.

    Proven under add-or-remove, replace-special and replace-one. With truncation the selection
    depends on the number of examples, so only the two replace relations hold. With EQUAL_SPLIT
    groups only replace-special holds, the relation of the published proof.
    """

    sampling_prob: float
    iterations: int
    truncated_batch_size: int | None = None
    cycle_length: int = 1
    partition_type: PartitionType = PartitionType.EQUAL_SPLIT

    def __post_init__(self) -> None:
        probability("sampling_prob", self.sampling_prob)
        whole_number("iterations", self.iterations, 1)
        whole_number("cycle_length", self.cycle_length, 1)
        if self.truncated_batch_size is not None:
            whole_number("truncated_batch_size", self.truncated_batch_size, 1)
        options = "PartitionType.EQUAL_SPLIT or PartitionType.INDEPENDENT"
        instance("partition_type", self.partition_type, PartitionType, options)

    @classmethod
    def with_expected_batch_size(
        cls,
        expected_batch_size: float,
        num_examples: int,
        iterations: int,
        *,
        cycle_length: int = 1,
        truncated_batch_size: int | None = None,
        partition_type: PartitionType = PartitionType.EQUAL_SPLIT,
    ) -> "CyclicPoissonSampling":
        """Builds a sampler with `expected_batch_size` examples per batch before truncation."""
        whole_number("num_examples", num_examples, 1)
        whole_number("cycle_length", cycle_length, 1)
        hint = "the mean batch size before truncation"
        expected_batch_size = finite_number("expected_batch_size", expected_batch_size, hint)
        if cycle_length > 1 and partition_type is PartitionType.EQUAL_SPLIT:
            group_size: float = num_examples // cycle_length
        else:
            group_size = num_examples / cycle_length
        if not 0 <= expected_batch_size <= group_size:
            raise FixArgumentsError(
                f"expected_batch_size={expected_batch_size}: each batch is sampled from a group of "
                f"{group_size:g} examples ({num_examples} examples, cycle_length={cycle_length}). "
                f"Pass a number from 0 to {group_size:g}, or a smaller cycle_length."
            )
        prob = expected_batch_size / group_size if group_size else 0.0
        return cls(prob, iterations, truncated_batch_size, cycle_length, partition_type)

    def group_size(self, num_examples: int) -> int:
        """The size of every group. Groups of an INDEPENDENT partition have random sizes."""
        if self.cycle_length > 1 and self.partition_type is PartitionType.INDEPENDENT:
            raise FixArgumentsError("INDEPENDENT groups have random sizes: use EQUAL_SPLIT.")
        return num_examples // self.cycle_length

    def _group(self, step: int, num_examples: int, seed: int) -> RandomGroup | None:
        """The group that a step samples from, or None if that is all examples."""
        if self.cycle_length == 1:
            return None
        independent = self.partition_type is PartitionType.INDEPENDENT
        group_of = independent_group if independent else equal_group
        return group_of(num_examples, self.cycle_length, step % self.cycle_length, seed)

    def _size(self, step: int, num_examples: int, seed: int) -> int:
        group = self._group(step, num_examples, seed)
        size = num_examples if group is None else group.size
        sampled = binomial(size, self.sampling_prob, uniforms(seed, SamplingPurpose.SIZE, step))
        # A random subset of a random subset is a random subset, so capping the size is enough.
        limit = self.truncated_batch_size
        return sampled if limit is None else min(sampled, limit)

    def _at_rows(self, step: int, num_examples: int, seed: int, rows: np.ndarray) -> np.ndarray:
        # Given its size, all batches are equally likely: the first rows of a random order.
        group = self._group(step, num_examples, seed)
        size = num_examples if group is None else group.size
        order = KeyedPermutation(size, derived_key(seed, SamplingPurpose.MEMBERS, step))
        return order(rows) if group is None else group.members(order(rows))

    def participation(self) -> Participation:
        return Participation(self.cycle_length, math.ceil(self.iterations / self.cycle_length))

    def selection_relations(self) -> tuple[str, ...]:
        equal = self.cycle_length > 1 and self.partition_type is PartitionType.EQUAL_SPLIT
        return SAME_SIZE if equal or self.truncated_batch_size is not None else ALL_RELATIONS

    def proven_event(self, num_examples: int, num_bands: int = 1) -> ProvenEvent:
        """The `dpsgd_event` or `amplified_bandmf_event`, or its truncated form.

        The cycle must have at least `num_bands` steps. Uses of an example are then so far apart
        that a run is `ceil(iterations / cycle_length)` Poisson-sampled Gaussian mechanisms.
        """
        self.check_bands(num_bands)
        arguments = {"iterations": self.iterations, "sampling_prob": self.sampling_prob}
        cyclic = self.cycle_length > 1
        relations = self.selection_relations()
        if cyclic:
            arguments["num_bands"] = self.cycle_length
            if self.partition_type is PartitionType.EQUAL_SPLIT:
                relations = (REPLACE_SPECIAL,)
        if self.truncated_batch_size is None:
            function = "amplified_bandmf_event" if cyclic else "dpsgd_event"
            return ProvenEvent(function, arguments, relations)
        if cyclic and self.partition_type is PartitionType.INDEPENDENT:
            raise FixArgumentsError(
                "truncated_batch_size with INDEPENDENT groups: the privacy of a truncated batch "
                "depends on the random group size, and is not monotone in it, so no single event "
                "covers all groups. Use PartitionType.EQUAL_SPLIT."
            )
        arguments["truncated_batch_size"] = self.truncated_batch_size
        size = self.group_size(whole_number("num_examples", num_examples, 1))
        arguments["largest_group_size" if cyclic else "num_examples"] = size
        function = "truncated_amplified_bandmf_event" if cyclic else "truncated_dpsgd_event"
        return ProvenEvent(function, arguments, relations)
