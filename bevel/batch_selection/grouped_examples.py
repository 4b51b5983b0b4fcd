"""Groups of examples that are stored as arrays: those of users, and those of allocations."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class ExampleGroups:
    """A partition of examples. Group g is `members[bounds[g]:bounds[g + 1]]`."""

    members: np.ndarray
    bounds: np.ndarray

    def of(self, group: int) -> np.ndarray:
        return self.members[self.bounds[group] : self.bounds[group + 1]]


def grouped(labels: np.ndarray, count: int) -> ExampleGroups:
    """Groups the examples by label: example i belongs to group `labels[i]`."""
    if count < 2**15:
        labels = labels.astype(np.int16)  # NumPy sorts 16-bit integers in linear time
    members = np.argsort(labels, kind="stable").astype(index_dtype(len(labels)))
    return ExampleGroups(members, np.cumsum([0, *np.bincount(labels, minlength=count)]))


def index_dtype(size: int) -> np.dtype:
    """int32 if it can index `size` examples, else int64."""
    return np.dtype(np.int32 if size < 2**31 else np.int64)
