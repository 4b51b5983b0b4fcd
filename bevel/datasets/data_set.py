"""`DataSet`: a training set and a test set, and `DataSpec`: what a model may know about them."""

import dataclasses
from typing import Literal

import numpy as np

from bevel.training.data import DataSource


@dataclasses.dataclass(frozen=True)
class DataSpec:
    """The public description of a data set: models are built from it, never from the records.

    Attributes:
      kind: 'image' (height, width, channels), 'tokens' (a sequence of token ids), or 'table'
        (any other numbers).
      shape: the shape of the input x of one example.
      dtype: the dtype of x, as text: 'float32', or 'int32' for tokens.
      classes: the number of classes, or None if y is a number to predict.
      vocabulary: the number of token ids, for tokens.
    """

    kind: Literal["image", "tokens", "table"]
    shape: tuple[int, ...]
    dtype: str = "float32"
    classes: int | None = None
    vocabulary: int | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class DataSet:
    """A training set, and a test set that is only used to measure the model.

    Attributes:
      spec: the public description.
      train, test: records {"x": ..., "y": ...}. y is an int32 class number from 0 to classes - 1,
        or a float32 number if there are no classes.
      user_ids: the user of each training record, if users are protected.
    """

    spec: DataSpec
    train: DataSource
    test: DataSource
    user_ids: np.ndarray | None = None
