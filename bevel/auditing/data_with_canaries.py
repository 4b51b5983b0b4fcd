"""A data set in which canaries take the places of some units."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from bevel.auditing.canaries import Canaries, RecordCanaries
from bevel.errors import FixArgumentsError
from bevel.training.data import DataSource

PyTree = Any


@dataclasses.dataclass(frozen=True, eq=False)
class DataWithCanaries:
    """Records `{"record": ..., "canary": number}`, a `DataSource`.

    `canary` is 0 for ordinary records, and otherwise one more than the number of the canary: rows
    of padding are zeros, and must not look like a canary. The record of a canary is the one whose
    place it takes, which is never trained on, or that of `RecordCanaries`.

    Attributes:
      source: the data.
      canaries: what takes the places of some units.
      unit_of_record: the unit of each record, if users are protected; None for examples.
    """

    source: DataSource
    canaries: Canaries
    unit_of_record: np.ndarray | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.canaries, RecordCanaries):
            return
        given = jax.tree.map(lambda x: (x.shape[1:], x.dtype), self.canaries.records)
        wanted = jax.tree.map(lambda x: (x.shape, x.dtype), self.source.record)
        if self.unit_of_record is not None or given != wanted:
            raise FixArgumentsError(
                f"the canary records have rows {given}, but the data has {wanted}: pass records "
                "of examples with the shapes and dtypes of the data."
            )

    @property
    def record(self) -> PyTree:
        return {"record": self.source.record, "canary": jax.ShapeDtypeStruct((), np.int32)}

    def __len__(self) -> int:
        return len(self.source)

    def read(self, indices: np.ndarray) -> PyTree:
        units = indices if self.unit_of_record is None else self.unit_of_record[indices]
        numbers = self._numbers[units]
        records = self.source.read(indices)
        if isinstance(self.canaries, RecordCanaries):
            own = numbers > 0
            for column, canaries in zip(
                jax.tree.leaves(records), jax.tree.leaves(self.canaries.records), strict=True
            ):
                column[own] = canaries[numbers[own] - 1]
        return {"record": records, "canary": numbers}

    @functools.cached_property
    def _numbers(self) -> np.ndarray:
        """The number of the canary at each unit, from 1 on, or 0."""
        units = len(self) if self.unit_of_record is None else int(np.max(self.unit_of_record)) + 1
        numbers = np.zeros(units, np.int32)
        numbers[self.canaries.units] = np.arange(1, len(self.canaries) + 1)
        return numbers
