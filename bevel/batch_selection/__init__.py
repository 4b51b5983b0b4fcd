"""Which examples each step uses. NumPy on the host; the event that each sampler is proven for."""

from bevel.batch_selection.balls_in_bins import BallsInBinsSampling
from bevel.batch_selection.fixed_batch import FixedBatchSampling
from bevel.batch_selection.groups import PartitionType
from bevel.batch_selection.min_separation import (
    BMinSepSampling,
    MinSepState,
)
from bevel.batch_selection.multi_owner import (
    MultiOwnerGraph,
    greedy_contribution_bound,
)
from bevel.batch_selection.multi_owner_sampling import (
    MultiOwnerMinSepSampling,
    MultiOwnerState,
)
from bevel.batch_selection.padding import (
    PaddedSizes,
    pad_to_multiple_of,
    padded_sizes,
    split_and_pad_global_batch,
)
from bevel.batch_selection.poisson import CyclicPoissonSampling
from bevel.batch_selection.proven_event import (
    Participation,
    ProvenEvent,
)
from bevel.batch_selection.random_allocation import RandomAllocationSampling
from bevel.batch_selection.randomness import RngType
from bevel.batch_selection.sampler import BatchSelectionStrategy
from bevel.batch_selection.users import (
    ExamplesByUser,
    UserSelectionStrategy,
)

__all__ = [
    "BallsInBinsSampling",
    "FixedBatchSampling",
    "PartitionType",
    "BMinSepSampling",
    "MinSepState",
    "MultiOwnerGraph",
    "greedy_contribution_bound",
    "MultiOwnerMinSepSampling",
    "MultiOwnerState",
    "PaddedSizes",
    "pad_to_multiple_of",
    "padded_sizes",
    "split_and_pad_global_batch",
    "CyclicPoissonSampling",
    "Participation",
    "ProvenEvent",
    "RandomAllocationSampling",
    "RngType",
    "BatchSelectionStrategy",
    "ExamplesByUser",
    "UserSelectionStrategy",
]
