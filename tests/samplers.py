"""Every sampler, by name: a new row joins all tests of what samplers have in common."""

import numpy as np

from bevel.batch_selection import (
    BallsInBinsSampling,
    BMinSepSampling,
    CyclicPoissonSampling,
    FixedBatchSampling,
    MultiOwnerGraph,
    MultiOwnerMinSepSampling,
    PartitionType,
    RandomAllocationSampling,
)

ITERATIONS = 12
INDEPENDENT = PartitionType.INDEPENDENT

SAMPLERS = {
    "poisson": CyclicPoissonSampling(0.3, ITERATIONS),
    "poisson_nothing": CyclicPoissonSampling(0.0, ITERATIONS),
    "poisson_everything": CyclicPoissonSampling(1.0, ITERATIONS),
    "truncated": CyclicPoissonSampling(0.3, ITERATIONS, truncated_batch_size=5),
    "cyclic": CyclicPoissonSampling(0.6, ITERATIONS, cycle_length=3),
    "cyclic_independent": CyclicPoissonSampling(
        0.6, ITERATIONS, cycle_length=3, partition_type=INDEPENDENT
    ),
    "cyclic_truncated": CyclicPoissonSampling(0.6, ITERATIONS, 4, cycle_length=3),
    "cyclic_independent_truncated": CyclicPoissonSampling(
        0.6, ITERATIONS, 4, cycle_length=3, partition_type=INDEPENDENT
    ),
    "balls_in_bins": BallsInBinsSampling(ITERATIONS, 5),
    "random_allocation": RandomAllocationSampling(3, ITERATIONS),
    "fixed": FixedBatchSampling(4, ITERATIONS),
    "fixed_replaced": FixedBatchSampling(4, ITERATIONS, replace=True),
    "min_sep": BMinSepSampling(0.4, ITERATIONS, 3),
    "min_sep_cold": BMinSepSampling(0.4, ITERATIONS, 3, warm_start=False),
    "min_sep_truncated": BMinSepSampling(0.4, ITERATIONS, 3, truncated_batch_size=3),
    "min_sep_one": BMinSepSampling(0.4, ITERATIONS, 1),
    "multi_owner": MultiOwnerMinSepSampling(4, ITERATIONS, 2, 3),
}
RANDOM_ACCESS = [name for name in SAMPLERS if not name.startswith(("min_sep", "multi_owner"))]


def population(name, num_examples):
    """What a sampler takes in the place of `num_examples`."""
    if name == "multi_owner":
        return MultiOwnerGraph.from_lists([[i % 7, 100 + i % 3] for i in range(num_examples)])
    return num_examples


def batches(name, num_examples, seed):
    return list(SAMPLERS[name].batch_iterator(population(name, num_examples), seed))


def equal(left, right):
    return len(left) == len(right) and all(map(np.array_equal, left, right))
