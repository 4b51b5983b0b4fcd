"""The arguments of `fit` that say what to train on, as data that can be sampled."""

import math
from typing import Any

import jax
import numpy as np

from bevel.checks import shown
from bevel.errors import FixArgumentsError
from bevel.keras_api.backend import keras
from bevel.keras_api.model_loss import DATA
from bevel.training.data import ArraySource, source_of

PyTree = Any


def training_data(x: Any, y: Any, sample_weight: Any, train_size: int) -> ArraySource:
    """The arrays of `fit`, as a dict with those entries of `DATA` that are not None."""
    given = dict(zip(DATA, (x, y, sample_weight), strict=True))
    data = {name: _as_arrays(name, value) for name, value in given.items() if value is not None}
    if "x" not in data:
        raise FixArgumentsError("x is missing: pass fit(x, y), with one row per example.")
    source = source_of(data)
    assert isinstance(source, ArraySource)
    if len(source) != train_size:
        raise FixArgumentsError(
            f"x has {len(source)} examples, but the DPKerasConfig has train_size={train_size}, "
            f"which epsilon depends on: set train_size={len(source)}."
        )
    return source


def split_validation(
    data: tuple[Any, Any, Any], share: float
) -> tuple[tuple[Any, Any, Any], tuple[Any, Any, Any]]:
    """Splits off the last rows as validation data, like Keras."""
    if not 0 < share < 1:
        raise FixArgumentsError(
            f"validation_split={shown(share)}: pass the share of the examples to validate on, such "
            "as 0.1, or validation_data."
        )
    kept = {math.floor(len(column) * (1 - share)) for column in jax.tree.leaves(data)}
    rows = min(kept, default=0)
    first, last = (
        jax.tree.map(lambda column, part=part: column[part], data)
        for part in (slice(rows), slice(rows, None))
    )
    return first, last


class FirstRow(keras.utils.PyDataset):
    """The first example, for each step of an epoch: Keras builds the model from its shapes.

    The private step selects its batches itself, because they follow from the plan.
    """

    def __init__(self, source: ArraySource, steps: int) -> None:
        super().__init__()
        row = jax.tree.map(lambda column: _canonical(column[:1]), source.columns)
        self._row = tuple(row.get(name) for name in DATA[: 3 if "sample_weight" in row else 2])
        self._steps = steps

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return self._row


def _canonical(values: np.ndarray) -> np.ndarray:
    return values.astype(jax.dtypes.canonicalize_dtype(values.dtype))


def _as_arrays(name: str, value: Any) -> Any:
    """Converts tables. Raises for data without random access."""
    if hasattr(value, "to_numpy"):
        return value.to_numpy()
    leaves = jax.tree.leaves(value, is_leaf=lambda x: not isinstance(x, dict | list | tuple))
    if isinstance(value, list | tuple) and all(isinstance(x, bool | int | float) for x in leaves):
        raise FixArgumentsError(
            f"{name} is a {type(value).__name__} of Python numbers: pass np.asarray({name})."
        )
    if not leaves or not all(hasattr(x, "shape") and hasattr(x, "dtype") for x in leaves):
        raise FixArgumentsError(
            f"{name} is a {type(value).__name__}: pass NumPy arrays, or a dict or list of them, "
            "with one row per example. Private batches are sampled from all examples, so "
            "generators and data sets that yield batches cannot be used."
        )
    return value
