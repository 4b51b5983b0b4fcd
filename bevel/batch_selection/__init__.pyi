from bevel.batch_selection.balls_in_bins import BallsInBinsSampling as BallsInBinsSampling
from bevel.batch_selection.examples_by_user import ExamplesByUser as ExamplesByUser
from bevel.batch_selection.fixed_batch import FixedBatchSampling as FixedBatchSampling
from bevel.batch_selection.groups import PartitionType as PartitionType
from bevel.batch_selection.min_separation import BMinSepSampling as BMinSepSampling
from bevel.batch_selection.min_separation import MinSepState as MinSepState
from bevel.batch_selection.multi_owner import MultiOwnerGraph as MultiOwnerGraph
from bevel.batch_selection.multi_owner import greedy_contribution_bound as greedy_contribution_bound
from bevel.batch_selection.multi_owner_sampling import (
    MultiOwnerMinSepSampling as MultiOwnerMinSepSampling,
)
from bevel.batch_selection.multi_owner_sampling import MultiOwnerState as MultiOwnerState
from bevel.batch_selection.padding import PaddedSizes as PaddedSizes
from bevel.batch_selection.padding import pad_to_multiple_of as pad_to_multiple_of
from bevel.batch_selection.padding import padded_sizes as padded_sizes
from bevel.batch_selection.padding import split_and_pad_global_batch as split_and_pad_global_batch
from bevel.batch_selection.poisson import CyclicPoissonSampling as CyclicPoissonSampling
from bevel.batch_selection.proven_event import Participation as Participation
from bevel.batch_selection.proven_event import ProvenEvent as ProvenEvent
from bevel.batch_selection.random_allocation import (
    RandomAllocationSampling as RandomAllocationSampling,
)
from bevel.batch_selection.randomness import RngType as RngType
from bevel.batch_selection.sampler import BatchSelectionStrategy as BatchSelectionStrategy
from bevel.batch_selection.users import UserSelectionStrategy as UserSelectionStrategy
