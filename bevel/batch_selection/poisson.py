"""Poisson sampling: plain, over cyclic groups, and with a cap on the batch size."""

import dataclasses
import math

import numpy as np

from bevel.batch_selection.groups import PartitionType, equal_groups, independent_groups
from bevel.batch_selection.proven_event import (
    ALL_RELATIONS,
    REPLACE_SPECIAL,
    SAME_SIZE,
    Participation,
    ProvenEvent,
)
from bevel.batch_selection.randomness import SamplingPurpose, stream
from bevel.batch_selection.sampler import RandomAccessSampler
from bevel.batch_selection.subset import subset_rows
from bevel.checks import probability, whole_number
from bevel.errors import FixArgumentsError


@dataclasses.dataclass(frozen=True)
class CyclicPoissonSampling(RandomAccessSampler):
    """Every example of a group joins the batch by itself, with probability `sampling_prob`.

    With `cycle_length=1` all examples are one group: the Poisson sampling of DP-SGD. Otherwise they
    are put into `cycle_length` groups once, and step t samples from group t % cycle_length.

    | option                 | what happens                                                     |
    | ---------------------- | ---------------------------------------------------------------- |
    | `truncated_batch_size` | a larger batch keeps a uniformly random subset of this size      |
    | `EQUAL_SPLIT`          | groups have one size; fewer than `cycle_length` examples unused  |
    | `INDEPENDENT`          | groups have binomial sizes; every example has its chance         |

    Cost: a batch takes time in its own size, not in the number of examples (1e4 of 1e9 examples in
    a few milliseconds). Groups take one index per example, drawn once. Without truncation, batch
    sizes are binomial: pad them with `padded_sizes`, and never drop, redraw or skip a batch for its
    size.

    Proven under: add-or-remove, replace-special and replace-one; with truncation, where the number
    of examples has a part in the selection, the two replace relations only; over groups of an equal
    split replace-special only, the relation of the published proof.
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
        if not isinstance(self.partition_type, PartitionType):
            raise FixArgumentsError(
                f"partition_type={self.partition_type!r}: give PartitionType.EQUAL_SPLIT or "
                "PartitionType.INDEPENDENT."
            )

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
        """The sampler whose batches have `expected_batch_size` examples on average, untruncated."""
        whole_number("num_examples", num_examples, 1)
        whole_number("cycle_length", cycle_length, 1)
        if cycle_length > 1 and partition_type is PartitionType.EQUAL_SPLIT:
            group: float = num_examples // cycle_length
        else:
            group = num_examples / cycle_length
        if not 0 <= expected_batch_size <= group:
            raise FixArgumentsError(
                f"expected_batch_size={expected_batch_size}: a batch is sampled from {group:g} "
                f"examples ({num_examples} in {cycle_length} groups). Give at most that, or a "
                "shorter cycle."
            )
        return cls(
            expected_batch_size / group,
            iterations,
            truncated_batch_size,
            cycle_length,
            partition_type,
        )

    def group_size(self, num_examples: int) -> int:
        """The size of every group: known beforehand for one group or an equal split."""
        if self.cycle_length > 1 and self.partition_type is PartitionType.INDEPENDENT:
            raise FixArgumentsError("INDEPENDENT groups have random sizes: use EQUAL_SPLIT.")
        return num_examples // self.cycle_length

    def _group(self, step: int, num_examples: int, seed: int) -> np.ndarray | None:
        """The members of a step's group; None stands for all examples."""
        if self.cycle_length == 1:
            return None
        independent = self.partition_type is PartitionType.INDEPENDENT
        split = independent_groups if independent else equal_groups
        return split(num_examples, self.cycle_length, seed).of(step % self.cycle_length)

    def _size(self, step: int, num_examples: int, seed: int) -> int:
        group = self._group(step, num_examples, seed)
        size = num_examples if group is None else len(group)
        sampled = int(stream(seed, SamplingPurpose.SIZE, step).binomial(size, self.sampling_prob))
        # A random subset of a random subset is a random subset: only the size has to be capped.
        limit = self.truncated_batch_size
        return sampled if limit is None else min(sampled, limit)

    def _rows(self, step: int, num_examples: int, seed: int, start: int, stop: int) -> np.ndarray:
        group = self._group(step, num_examples, seed)
        size = num_examples if group is None else len(group)
        count = self._size(step, num_examples, seed)
        places = subset_rows(
            size, count, start, stop, lambda part: stream(seed, SamplingPurpose.MEMBERS, step, part)
        )
        return places if group is None else group[places]

    def participation(self) -> Participation:
        return Participation(self.cycle_length, math.ceil(self.iterations / self.cycle_length))

    def selection_relations(self) -> tuple[str, ...]:
        equal = self.cycle_length > 1 and self.partition_type is PartitionType.EQUAL_SPLIT
        return SAME_SIZE if equal or self.truncated_batch_size is not None else ALL_RELATIONS

    def proven_event(self, num_examples: int, num_bands: int = 1) -> ProvenEvent:
        """`dpsgd_event` or `amplified_bandmf_event`, or their truncated forms.

        A cycle of at least `num_bands` steps separates the uses of an example, so that a run is
        `ceil(iterations / cycle_length)` Poisson-sampled Gaussian mechanisms.
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
                "truncated_batch_size with INDEPENDENT groups: the event of a truncated batch "
                "depends on the size of the group, and is not monotone in it, so no size stands "
                "for all of them. Use PartitionType.EQUAL_SPLIT."
            )
        arguments["truncated_batch_size"] = self.truncated_batch_size
        size = self.group_size(whole_number("num_examples", num_examples, 1))
        arguments["largest_group_size" if cyclic else "num_examples"] = size
        function = "truncated_amplified_bandmf_event" if cyclic else "truncated_dpsgd_event"
        return ProvenEvent(function, arguments, relations)
