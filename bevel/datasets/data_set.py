"""`DataSet`: a training set and a test set, and `DataSpec`: what a model may know about them."""

import dataclasses
from typing import Literal

import jax
import numpy as np

from bevel.checks import finite_number, ids, instance, one_of, shown, whole_number
from bevel.errors import FixArgumentsError
from bevel.training.data import DataSource


@dataclasses.dataclass(frozen=True)
class DataSpec:
    """The public description of a data set: models are built from it, never from the records.

    Attributes:
      kind: 'image' (height, width, channels), 'tokens' (a sequence of token ids), or 'table'
        (any other numbers).
      shape: the shape of the input x of one example.
      dtype: the dtype of x, as text: 'float32', or 'int32' for tokens.
      classes: the number of classes, or None if the target is not a class.
      vocabulary: the number of token ids, for tokens.
      target: what a model predicts, which is the y of a record:
        'class': an int32 from 0 to classes - 1.
        'number': a float32, scaled from `target_range` to [-1, 1].
        'next token': int32 of the shape of x. y[t] is the token that follows x[t], or -1 where
        there is nothing to predict because of padding.
      padding: the token id that fills short sequences, for tokens.
      target_range: the declared range of the target in its own unit, if it is a number.
    """

    kind: Literal["image", "tokens", "table"]
    shape: tuple[int, ...]
    dtype: str = "float32"
    classes: int | None = None
    vocabulary: int | None = None
    target: Literal["class", "number", "next token"] = "class"
    padding: int | None = None
    target_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        one_of("kind", self.kind, ("image", "tokens", "table"))
        one_of("target", self.target, ("class", "number", "next token"))
        for size in instance("shape", self.shape, tuple, "a tuple of sizes"):
            whole_number("a size in shape", size, 0)
        one_of("dtype", self.dtype, ("float32", "int32", "float64", "float16", "bfloat16", "uint8"))
        most, why = 2**31 - 1, "Labels and tokens are int32."
        for name, least in [("classes", 1), ("vocabulary", 1), ("padding", 0)]:
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), least, most, why)
        if self.target_range is not None:
            ends = instance(
                "target_range", self.target_range, tuple, "the lowest and highest value"
            )
            numbers = [finite_number("an end of target_range", end, "declared") for end in ends]
            if len(numbers) != 2 or not numbers[0] < numbers[1]:
                raise FixArgumentsError(f"target_range={shown(ends)}: pass (lowest, highest).")

    @property
    def record(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The types of one record {"x": ..., "y": ...}."""
        y_shape = self.shape if self.target == "next token" else ()
        y_dtype = np.float32 if self.target == "number" else np.int32
        return {
            "x": jax.ShapeDtypeStruct(self.shape, np.dtype(self.dtype)),
            "y": jax.ShapeDtypeStruct(y_shape, y_dtype),
        }


@dataclasses.dataclass(frozen=True, eq=False)
class DataSet:
    """A training set, and a test set that is only used to measure the model.

    Attributes:
      spec: the public description.
      train, test: records {"x": ..., "y": ...}, as `spec` describes them.
      user_ids: the user of each training record, if users are protected.
    """

    spec: DataSpec
    train: DataSource
    test: DataSource
    user_ids: np.ndarray | None = None

    def __post_init__(self) -> None:
        instance("spec", self.spec, DataSpec, "DataSpec(...)")
        for name in ("train", "test"):
            source = getattr(self, name)
            if not isinstance(source, DataSource):
                raise FixArgumentsError(f"{name}={shown(source)}: pass a source of records.")
        if self.user_ids is not None and len(ids("user_ids", self.user_ids)) != len(self.train):
            raise FixArgumentsError(
                f"user_ids has {len(self.user_ids)} ids for {len(self.train)} records: pass one "
                "for each."
            )

    @property
    def units(self) -> int:
        """The number of training users if users are protected, else of training records."""
        return len(self.train) if self.user_ids is None else len(np.unique(self.user_ids))
