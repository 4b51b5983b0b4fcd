"""Holds out a part of the records for testing, by a hash of each record or user.

Whether a record is held out depends on this record (or its user) and a public seed only. If it
depended on a random order of all records instead, one more record could change the place of every
other one, and the training sets of two neighbouring files would differ in many records.
"""

import dataclasses
import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from bevel.errors import FixArgumentsError, FixDataError
from bevel.training.data import DataSource

CHUNK = 1024


@dataclasses.dataclass(frozen=True, eq=False)
class Users:
    """The user of each record, as a number, and the id of each user as text."""

    numbers: np.ndarray
    ids: list[str]

    @classmethod
    def of(cls, values: np.ndarray) -> "Users":
        ids, numbers = np.unique(values.astype(str), return_inverse=True)
        return cls(numbers.astype(np.int64), ids.tolist())


class Part(NamedTuple):
    """Records with their users, if users are protected.

    `names` are texts that identify the records, if hashing them is faster than reading the records.
    """

    records: DataSource
    users: Users | None = None
    names: list[str] | None = None

    def take(self, rows: np.ndarray) -> "Part":
        users = self.users and Users(self.users.numbers[rows], self.users.ids)
        names = self.names and [self.names[row] for row in rows.tolist()]
        return Part(_Subset(self.records, rows), users, names)


class _Subset:
    """Some records of a source, in order."""

    def __init__(self, source: DataSource, rows: np.ndarray) -> None:
        self._source, self._rows, self.record = source, rows, source.record

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, indices: np.ndarray) -> Any:
        return self._source.read(self._rows[indices])


def hold_out(part: Part, fraction: float, seed: int) -> tuple[Part, Part]:
    """Splits into the rest and the held-out part, which has about `fraction` of the records.

    If users are protected, a user is in one of the two parts with all records.
    """
    if not 0 < fraction < 1:
        raise FixArgumentsError(f"[data] test_fraction is {fraction}: use a number from 0 to 1.")
    if part.users is not None:
        of_user = [_is_held_out(name.encode(), fraction, seed) for name in part.users.ids]
        chosen = np.array(of_user, bool)[part.users.numbers]
    else:
        chosen = np.array([_is_held_out(x, fraction, seed) for x in _contents(part)], bool)
    rest, held_out = np.flatnonzero(~chosen), np.flatnonzero(chosen)
    if not len(rest) or not len(held_out):
        raise FixDataError(
            f"[data] test_fraction {fraction:g} of {len(part.records)} records leaves one part "
            "empty. Use another test_fraction or split_seed, or a test set of its own."
        )
    return part.take(rest), part.take(held_out)


def _contents(part: Part) -> Iterator[bytes]:
    """What identifies each record: its name, or all of its bytes."""
    if part.names is not None:
        yield from (name.encode() for name in part.names)
        return
    for start in range(0, len(part.records), CHUNK):
        rows = np.arange(start, min(start + CHUNK, len(part.records)))
        leaves = [np.ascontiguousarray(x) for x in jax.tree.leaves(part.records.read(rows))]
        for row in range(len(rows)):
            yield b"".join(leaf[row].tobytes() for leaf in leaves)


def _is_held_out(content: bytes, fraction: float, seed: int) -> bool:
    key = str(seed).encode()
    hashed = hashlib.blake2b(content, key=key, person=b"bevel test set", digest_size=8).digest()
    return int.from_bytes(hashed, "little") < fraction * 2**64
