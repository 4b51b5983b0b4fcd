"""Descriptions of tiny data sets of each kind and target, records of them, and model files."""

import numpy as np

from bevel.datasets import DataSet, DataSpec
from bevel.training.data import ArraySource

IMAGES = DataSpec("image", (6, 6, 1), classes=3)
TABLE = DataSpec("table", (5,), classes=3)
TOKENS = DataSpec("tokens", (7,), "int32", classes=3, vocabulary=11, padding=0)
NUMBERS = DataSpec("table", (5,), target="number")
NEXT = DataSpec("tokens", (7,), "int32", vocabulary=11, target="next token", padding=0)
SPECS = {"images": IMAGES, "table": TABLE, "tokens": TOKENS, "numbers": NUMBERS, "next": NEXT}


def records(spec: DataSpec, size: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Random records. Sequences end in padding."""
    rng = np.random.default_rng(seed)
    if spec.kind == "tokens":
        x = rng.integers(1, spec.vocabulary, (size, *spec.shape)).astype(np.int32)
        x = np.where(np.arange(spec.shape[0]) < rng.integers(3, 8, (size, 1)), x, 0)
    else:
        x = rng.normal(size=(size, *spec.shape)).astype(np.float32)
    if spec.target == "class":
        y = rng.integers(0, spec.classes, size).astype(np.int32)
    elif spec.target == "number":
        y = rng.uniform(-1, 1, size).astype(np.float32)
    else:
        y = np.concatenate([x[:, 1:], np.zeros((size, 1), np.int32)], axis=1)
        y = np.where(y == 0, -1, y)
    return {"x": x.astype(spec.dtype), "y": y.astype(y.dtype)}


def data_of(spec: DataSpec, train: int = 32, test: int = 11) -> DataSet:
    return DataSet(
        spec, ArraySource(records(spec, train)), ArraySource(records(spec, test, seed=1))
    )
