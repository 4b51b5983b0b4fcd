"""The examples of each user, by offsets into an array that is sorted by user."""

import dataclasses

import numpy as np

from bevel.batch_selection.grouped_examples import grouped
from bevel.checks import LARGEST, ids, integers
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "bounds", integers("bounds", self.bounds))
        _check_offsets("bounds", self.bounds)
        if self.user_ids is not None:
            object.__setattr__(self, "user_ids", ids("user_ids", self.user_ids))
            if len(self.user_ids) != len(self):
                raise FixArgumentsError(
                    f"user_ids has {len(self.user_ids)} ids for {len(self)} users: pass one each."
                )
        if self.members is not None:
            members, size = integers("members", self.members), self.num_examples
            if len(members) != size or not _all_below(members, size):
                raise FixArgumentsError(
                    f"members has shape {members.shape}: pass the {size} examples of all users, "
                    f"each a number from 0 to {size - 1}."
                )
            object.__setattr__(self, "members", members)

    @classmethod
    def of(cls, user_ids: "np.ndarray | ExamplesByUser") -> "ExamplesByUser":
        """Groups examples by user. `user_ids` holds the id of each example's user."""
        if isinstance(user_ids, ExamplesByUser):
            return user_ids
        owners = ids("user_ids", user_ids)
        first = _first_of_each(owners)
        if first is not None:
            return cls(np.asarray(owners[first]), np.append(first, len(owners)))
        users, labels = np.unique(owners, return_inverse=True)
        by_label = grouped(labels, len(users))
        return cls(users, by_label.bounds, by_label.members)

    @classmethod
    def from_offsets(cls, offsets: np.ndarray) -> "ExamplesByUser":
        """The users of a data set that is sorted by user, without a number for each example.

        User u has the examples `offsets[u]` to `offsets[u + 1] - 1`. The offsets start with 0, end
        with the number of examples and never decrease. They may be memory-mapped. The id of a user
        is its number.
        """
        offsets = integers("offsets", offsets)
        _check_offsets("offsets", offsets)
        users = object.__new__(cls)  # the offsets are read once, because they may be on disk
        vars(users).update(user_ids=None, bounds=offsets, members=None)
        return users

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


def _check_offsets(name: str, offsets: np.ndarray) -> None:
    """Raises unless the offsets start with 0 and never decrease."""
    if not len(offsets):
        raise FixArgumentsError(
            f"{name} is empty: pass a 1-D array of integers, one more than users."
        )
    if offsets[0] != 0:
        raise FixArgumentsError(
            f"{name} starts with {offsets[0]}: it must start with 0, or the examples before it "
            "would belong to nobody."
        )
    for start in range(0, len(offsets) - 1, _CHUNK):
        part = offsets[start : start + _CHUNK + 1]
        if np.any(part[1:] < part[:-1]):
            user = start + int(np.argmax(part[1:] < part[:-1]))
            raise FixArgumentsError(
                f"{name} decreases after user {user}, from {offsets[user]} to {offsets[user + 1]}: "
                "some examples would belong to two users."
            )
    if offsets[-1] > LARGEST:
        raise FixArgumentsError(f"{name} ends with {offsets[-1]} examples: pass at most {LARGEST}.")


def _all_below(numbers: np.ndarray, size: int) -> bool:
    parts = (numbers[start : start + _CHUNK] for start in range(0, len(numbers), _CHUNK))
    return all(part.min() >= 0 and part.max() < size for part in parts)


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
