"""`bevel.batch_selection`."""

import functools

import numpy as np
from bad_input.domains import (
    AT_LEAST_0,
    FLAG,
    PROBABILITY,
    Domain,
    array,
    instance,
    integer,
    number,
    optional,
    sequence,
)
from bad_input.rows import made, row

from bevel import batch_selection as bs

ROWS_AT_MOST = 2**24
COUNT = integer(1)
CAP = optional(COUNT)
IDS = Domain("ids", lambda v: False if isinstance(v, np.ma.MaskedArray) else None)
SEED = integer(0, 2**128 - 1)
GENERATOR = Domain("a generator", lambda v: isinstance(v, np.random.Generator))
RNG = optional(SEED) | GENERATOR


def graph() -> bs.MultiOwnerGraph:
    return bs.MultiOwnerGraph.from_lists([[0, 1], [1], [2]])


NAME = Domain("an identifier", lambda v: isinstance(v, str) and v.isidentifier())
RELATIONS = Domain(
    "a tuple of relations",
    lambda v: isinstance(v, tuple) and all(isinstance(r, str) and "REPLACE" in r for r in v),
)
STATE_BATCHES = Domain(
    "a tuple of batches",
    lambda v: isinstance(v, tuple) and all(isinstance(b, np.ndarray) for b in v),
)
NAMED = Domain(
    "a dict with names",
    lambda v: isinstance(v, dict) and all(isinstance(k, str) and k for k in v),
)

ROWS = [
    row(
        "CyclicPoissonSampling",
        bs.CyclicPoissonSampling,
        sampling_prob=(PROBABILITY, 0.5),
        iterations=(COUNT, 4),
        truncated_batch_size=(CAP, 3),
        cycle_length=(COUNT, 2),
        partition_type=(instance(bs.PartitionType), bs.PartitionType.EQUAL_SPLIT),
    ),
    row(
        "CyclicPoissonSampling.with_expected_batch_size",
        bs.CyclicPoissonSampling.with_expected_batch_size,
        "expected_batch_size num_examples cycle_length",
        expected_batch_size=(AT_LEAST_0, 2.0),
        num_examples=(COUNT, 10),
        iterations=(COUNT, 4),
        cycle_length=(COUNT, 2),
        truncated_batch_size=(CAP, None),
        partition_type=(instance(bs.PartitionType), bs.PartitionType.EQUAL_SPLIT),
    ),
    row(
        "BallsInBinsSampling",
        bs.BallsInBinsSampling,
        iterations=(COUNT, 4),
        cycle_length=(COUNT, 2),
    ),
    row(
        "FixedBatchSampling",
        bs.FixedBatchSampling,
        batch_size=(COUNT, 2),
        iterations=(COUNT, 4),
        replace=(FLAG, False),
    ),
    row(
        "RandomAllocationSampling",
        bs.RandomAllocationSampling,
        "all",
        total_participations=(integer(0), 1),
        iterations=(COUNT, 4),
    ),
    row(
        "BMinSepSampling",
        bs.BMinSepSampling,
        sampling_prob=(PROBABILITY, 0.5),
        iterations=(COUNT, 4),
        min_sep=(COUNT, 2),
        warm_start=(FLAG, True),
        truncated_batch_size=(CAP, None),
    ),
    row(
        "MultiOwnerMinSepSampling",
        bs.MultiOwnerMinSepSampling,
        batch_size=(COUNT, 2),
        iterations=(COUNT, 4),
        min_sep=(COUNT, 1),
        max_participations=(CAP, None),
    ),
    row(
        "UserSelectionStrategy",
        bs.UserSelectionStrategy,
        base_strategy=(instance(bs.BatchSelectionStrategy), bs.BallsInBinsSampling(4, 2)),
        examples_per_user_per_batch=(integer(1, ROWS_AT_MOST), 2),
        shuffle_per_user=(FLAG, False),
    ),
    row(
        "MinSepState",
        bs.MinSepState,
        step=(integer(0), 0),
        resting=(STATE_BATCHES, (np.array([1, 2]),)),
    ),
    row(
        "MultiOwnerState",
        bs.MultiOwnerState,
        step=(integer(0), 0),
        round=(integer(0), 0),
        position=(integer(0), 0),
        last_used=(array("iu"), np.array([-1, -1])),
        uses=(array("iu", least=0), np.array([0, 0])),
    ),
    row(
        "ExamplesByUser",
        bs.ExamplesByUser,
        user_ids=(IDS, np.array([5, 7])),
        bounds=(array("iu", least=0), np.array([0, 1, 3])),
        members=(optional(array("iu", least=0)), np.array([2, 0, 1])),
    ),
    row("ExamplesByUser.of", bs.ExamplesByUser.of, user_ids=(IDS, np.array([5, 7, 5]))),
    row(
        "ExamplesByUser.from_offsets",
        bs.ExamplesByUser.from_offsets,
        offsets=(array("iu", least=0), np.array([0, 1, 3])),
    ),
    row(
        "MultiOwnerGraph",
        bs.MultiOwnerGraph,
        owner_ids=(IDS, np.array([5, 7])),
        owners=(array("iu", least=0), np.array([0, 1, 1])),
        bounds=(array("iu", least=0), np.array([0, 2, 3])),
    ),
    row(
        "MultiOwnerGraph.from_edges",
        bs.MultiOwnerGraph.from_edges,
        "all",
        examples=(array("iu", least=0), np.array([0, 1, 1])),
        owner_ids=(IDS, np.array([5, 7, 5])),
        num_examples=(integer(0), 2),
    ),
    row("MultiOwnerGraph.from_lists", bs.MultiOwnerGraph.from_lists, owners=(IDS, [[1, 2], [1]])),
    row(
        "greedy_contribution_bound",
        bs.greedy_contribution_bound,
        graph=(instance(bs.MultiOwnerGraph), made(graph)),
        max_examples_per_owner=(COUNT, 1),
        rng=(RNG, 0),
    ),
    row(
        "PaddedSizes",
        bs.PaddedSizes,
        "all",
        sizes=(sequence(COUNT, 1), (4, 8)),
        multiple=(COUNT, 4),
    ),
    row(
        "padded_sizes",
        bs.padded_sizes,
        expected_batch_size=(number(0, 2**50, "lr"), 10.0),
        multiple=(COUNT, 4),
        count=(integer(1, 1000), 3),
        spread=(optional(number(0, 2**50, "lr")), None),
    ),
    row(
        "pad_to_multiple_of",
        bs.pad_to_multiple_of,
        "multiple microbatch_size",
        indices=(array("i", (1, 2, 3)), np.array([3, 1])),
        multiple=(integer(1, ROWS_AT_MOST), 4),
        microbatch_size=(CAP, 2),
    ),
    row(
        "split_and_pad_global_batch",
        bs.split_and_pad_global_batch,
        "minibatch_size microbatch_size",
        indices=(array("i", (1, 2, 3)), np.array([3, 1])),
        minibatch_size=(integer(1, ROWS_AT_MOST), 4),
        microbatch_size=(CAP, 2),
    ),
    row(
        "Participation",
        bs.Participation,
        min_separation=(COUNT, 1),
        max_participations=(integer(0), 4),
    ),
    row(
        "ProvenEvent",
        bs.ProvenEvent,
        function=(NAME, "dpsgd_event"),
        arguments=(NAMED, {"iterations": 4}),
        relations=(RELATIONS, ("REPLACE_ONE",)),
        takes_strategy=(FLAG, False),
    ),
]

# What a sampler draws, with arguments that the constructor does not see.
ROWS += [
    row(
        f"{type(sampler).__name__}.batch",
        functools.partial(sampler.batch, num_examples=10),
        "step process_index process_count",
        step=(integer(0), 1),
        rng=(SEED, 0),
        process_index=(integer(0), 0),
        process_count=(COUNT, 2),
    )
    for sampler in (
        bs.CyclicPoissonSampling(0.5, 4, cycle_length=2),
        bs.BallsInBinsSampling(4, 2),
        bs.RandomAllocationSampling(1, 4),
        bs.FixedBatchSampling(2, 4),
        bs.BMinSepSampling(0.5, 4, 2),
    )
]
EXEMPT = {
    "PartitionType": "an enumeration",
    "RngType": "a type",
    "BatchSelectionStrategy": "abstract",
}
