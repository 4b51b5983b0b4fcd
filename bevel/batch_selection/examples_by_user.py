"""The examples of each user, by offsets into an array that is sorted by user."""

import dataclasses

import numpy as np

from bevel.batch_selection.grouped_examples import grouped
from bevel.errors import FixArgumentsError

_CHUNK = 1 << 20  # entries that are checked at a time, so that memory-mapped arrays stay on disk


@dataclasses.dataclass(frozen=True, eq=False)
class ExamplesByUser:
    """The examples of each user, in data set order. Users are ordered by id.

    User u has `bounds[u + 1] - bounds[u]` examples: those numbers themselves if the data set is
    sorted by user, and otherwise the entries of `members` there. Build it once and pass it instead
    of `user_ids`, which would be sorted at every call.

    | constructor       | memory                                                                |
    | ----------------- | --------------------------------------------------------------------- |
    | `of(user_ids)`    | one number per user, and one per example unless the ids are sorted    |
    | `from_offsets`    | none, if `offsets` is memory-mapped                                   |
    """

    user_ids: np.ndarray | None  # one id per user, sorted; None if they are numbered
    bounds: np.ndarray
    members: np.ndarray | None = None

    @classmethod
    def of(cls, user_ids: "np.ndarray | ExamplesByUser") -> "ExamplesByUser":
        """Groups examples by user. `user_ids` holds the id of each example's user."""
        if isinstance(user_ids, ExamplesByUser):
            return user_ids
        ids = np.asarray(user_ids)
        if ids.ndim != 1:
            raise FixArgumentsError(
                f"user_ids has shape {ids.shape}: pass a 1-D array with one id per example."
            )
        first = _first_of_each(ids)
        if first is not None:
            return cls(np.asarray(ids[first]), np.append(first, len(ids)))
        users, labels = np.unique(ids, return_inverse=True)
        by_label = grouped(labels, len(users))
        return cls(users, by_label.bounds, by_label.members)

    @classmethod
    def from_offsets(cls, offsets: np.ndarray) -> "ExamplesByUser":
        """The users of a data set that is sorted by user, without a number for each example.

        User u has the examples `offsets[u]` to `offsets[u + 1] - 1`. The offsets start with 0, end
        with the number of examples and never decrease. They may be memory-mapped. The id of a user
        is its number.
        """
        offsets = np.asanyarray(offsets)
        if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or len(offsets) < 1:
            raise FixArgumentsError(
                f"offsets has dtype {offsets.dtype} and shape {offsets.shape}: pass a 1-D array of "
                "integers, one more than there are users."
            )
        if offsets[0] != 0:
            raise FixArgumentsError(
                f"offsets starts with {offsets[0]}: it must start with 0, or the examples before "
                "it would belong to nobody."
            )
        for start in range(0, len(offsets) - 1, _CHUNK):
            part = offsets[start : start + _CHUNK + 1]
            if np.any(part[1:] < part[:-1]):
                user = start + int(np.argmax(part[1:] < part[:-1]))
                raise FixArgumentsError(
                    f"offsets decreases after user {user}, from {offsets[user]} to "
                    f"{offsets[user + 1]}: some examples would belong to two users."
                )
        return cls(None, offsets)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @property
    def num_examples(self) -> int:
        return int(self.bounds[-1])

    def counts(self, users: np.ndarray) -> np.ndarray:
        """The number of examples of each of these users."""
        return (self.bounds[users + 1] - self.bounds[users]).astype(np.int64)

    def examples_at(self, users: np.ndarray, order: np.ndarray) -> np.ndarray:
        """The examples of these users at places of their own order, (users, places)."""
        places = self.bounds[users].astype(np.int64)[:, None] + order
        return places if self.members is None else self.members[places].astype(np.int64)


def _first_of_each(ids: np.ndarray) -> np.ndarray | None:
    """The first example of each user if the ids are sorted integers or strings, else None."""
    if ids.dtype.kind not in "iuSU":  # NaN equals itself for np.unique only
        return None
    found = [np.zeros(min(1, len(ids)), np.int64)]
    for start in range(1, len(ids), _CHUNK):
        part = ids[start - 1 : start + _CHUNK]
        if np.any(part[1:] < part[:-1]):
            return None
        found.append(start + np.flatnonzero(part[1:] != part[:-1]))
    return np.concatenate(found)
