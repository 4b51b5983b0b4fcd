"""Fixed-size batches, drawn independently at each step."""

import dataclasses

import numpy as np

from bevel.batch_selection.permutation import KeyedPermutation
from bevel.batch_selection.proven_event import REPLACE_ONE, SAME_SIZE, Participation, ProvenEvent
from bevel.batch_selection.randomness import SamplingPurpose, derived_key
from bevel.batch_selection.sampler import RandomAccessSampler
from bevel.batch_selection.siphash import siphash
from bevel.checks import flag, whole_number
from bevel.errors import FixArgumentsError


@dataclasses.dataclass(frozen=True)
class FixedBatchSampling(RandomAccessSampler):
    """Draws `batch_size` examples at each step, independently of the other steps.

    With `replace=False` all subsets of that size are equally likely. With `replace=True` each row
    is drawn from all examples, so an example may be in a batch several times.

    Cost: drawing a batch takes time proportional to the batch size.

    Proven under replace-one, without replacement. With replacement the list of relations is empty:
    dp-accounting has an event but no accountant for it, and the sensitivity of a batch is not that
    of one contribution, because an example may be in it several times.
    """

    batch_size: int
    iterations: int
    replace: bool = False

    def __post_init__(self) -> None:
        whole_number("batch_size", self.batch_size, 1)
        whole_number("iterations", self.iterations, 1)
        flag("replace", self.replace)

    def _size(self, step: int, num_examples: int, seed: int) -> int:
        if num_examples == 0 or (not self.replace and self.batch_size > num_examples):
            raise FixArgumentsError(
                f"batch_size={self.batch_size}, but there are only {num_examples} examples. "
                + ("Add data." if num_examples == 0 else "Use a smaller batch, or replace=True.")
            )
        return self.batch_size

    def _at_rows(self, step: int, num_examples: int, seed: int, rows: np.ndarray) -> np.ndarray:
        key = derived_key(seed, SamplingPurpose.MEMBERS, step)
        if self.replace:
            return siphash(rows, key) % np.uint64(num_examples)
        return KeyedPermutation(num_examples, key)(rows)

    def participation(self) -> Participation:
        if self.replace:
            raise FixArgumentsError(
                "replace=True: an example may be in one batch several times, so no sensitivity can "
                "be stated. Use replace=False."
            )
        return Participation(1, self.iterations)

    def selection_relations(self) -> tuple[str, ...]:
        return SAME_SIZE

    def proven_event(self, num_examples: int, num_bands: int = 1) -> ProvenEvent:
        arguments = {
            "iterations": self.iterations,
            "dataset_size": whole_number("num_examples", num_examples, 1),
            "batch_size": self.batch_size,
            "replace": self.replace,
        }
        if self.replace:
            return ProvenEvent("fixed_dpsgd_event", arguments, ())
        self.check_bands(num_bands)
        return ProvenEvent("fixed_dpsgd_event", arguments, (REPLACE_ONE,))
