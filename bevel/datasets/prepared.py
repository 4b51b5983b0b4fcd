"""`PreparedSource`: records as the model gets them, prepared one batch at a time.

Everything here is done to each record by itself: what happens to a record does not depend on
others.
"""

import math
from typing import Any

import numpy as np

from bevel.datasets.data_set import DataSpec
from bevel.datasets.labels import Labels
from bevel.datasets.options import DataTable
from bevel.errors import FixArgumentsError, FixDataError
from bevel.training.data import DataSource


class PreparedSource:
    """A source of {"x": ..., "y": ...} whose records are converted to what `spec` describes.

    Bytes are divided by 255, images without a channel axis get one, and numbers become float32.
    `labels` encodes y at every read; None means that y is encoded already, or is the next token.
    """

    def __init__(self, records: DataSource, spec: DataSpec, labels: Labels | None = None) -> None:
        self._records, self._spec, self._labels = records, spec, labels
        self.record = spec.record

    def __len__(self) -> int:
        return len(self._records)

    def read(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        read = self._records.read(indices)
        spec = self._spec
        if spec.kind == "tokens":
            tokens = checked_tokens(read["x"], spec, indices)
            if spec.target == "next token":
                return {"x": tokens[:, :-1], "y": _next_tokens(tokens, spec.padding)}
            x = tokens
        else:
            x = read["x"].astype(np.float32)
            x = (x / np.float32(255) if read["x"].dtype == np.uint8 else x).reshape(
                len(x), *spec.shape
            )
        y = read["y"]
        if self._labels is not None:
            y, missing = self._labels.encode(np.asarray(y), f"records {_span(indices)}")
            if missing.any():
                raise FixDataError(f"record {int(indices[np.argmax(missing)])} has no label.")
        return {"x": x, "y": y}


def checked_tokens(tokens: np.ndarray, spec: DataSpec, indices: np.ndarray) -> np.ndarray:
    """Token ids as int32. Raises for an id outside the vocabulary, rather than wrapping it."""
    assert spec.vocabulary is not None
    wrong = (tokens < 0) | (tokens >= spec.vocabulary)
    if wrong.any():
        row = int(np.argmax(wrong.any(axis=1)))
        raise FixDataError(
            f"record {int(indices[row])} has token id {tokens[wrong][0]}, but [data] vocabulary is "
            f"{spec.vocabulary}: ids run from 0 to {spec.vocabulary - 1}."
        )
    return tokens.astype(np.int32)


def input_spec(table: DataTable, shape: tuple[int, ...], dtype: Any, where: str) -> DataSpec:
    """The description of inputs of this shape and dtype, without its classes."""
    dtype = np.dtype(dtype)
    if dtype.kind not in "biuf":
        raise FixDataError(
            f"{where} has dtype {dtype}. Inputs are numbers: encode it, or use a table with "
            "declared columns."
        )
    if 0 in shape:
        raise FixDataError(f"{where} has records of shape {shape}, which hold nothing.")
    if table.kind == "tokens":
        return _token_spec(table, shape, dtype, where)
    if dtype.kind in "iu" and dtype != np.uint8 and len(shape) == 1 and table.kind == "auto":
        raise FixDataError(
            f"{where} holds integers of shape {shape}. Write kind = 'tokens' with vocabulary = N "
            "in [data] if they are token ids, or kind = 'table' if they are numbers."
        )
    if table.target == "next token":
        raise FixArgumentsError("[data] target 'next token' needs kind = 'tokens'.")
    if table.kind in ("auto", "image") and len(shape) in (2, 3):
        return DataSpec("image", (*shape, 1)[:3])
    if table.kind == "image":
        raise FixDataError(f"{where} has records of shape {shape}, but images have 2 or 3 axes.")
    return DataSpec("table", shape or (1,))


def _token_spec(table: DataTable, shape: tuple[int, ...], dtype: np.dtype, where: str) -> DataSpec:
    if dtype.kind not in "iu" or len(shape) != 1:
        raise FixDataError(
            f"{where} has records of dtype {dtype} and shape {shape}, but kind is 'tokens': store "
            "one row of token ids per record, all of one length."
        )
    if table.vocabulary is None:
        raise FixDataError(
            "[data] kind is 'tokens': write vocabulary = N, the number of token ids. It becomes "
            "public with the model, so take it from the tokenizer."
        )
    if table.padding is not None and not 0 <= table.padding < table.vocabulary:
        raise FixArgumentsError(
            f"[data] padding is {table.padding}: use an id from 0 to {table.vocabulary - 1}."
        )
    length = math.prod(shape)
    if table.target == "next token":
        if length < 2:
            raise FixDataError(f"{where} has one token per record: there is no next token.")
        return DataSpec(
            "tokens",
            (length - 1,),
            "int32",
            vocabulary=table.vocabulary,
            target="next token",
            padding=table.padding,
        )
    return DataSpec("tokens", shape, "int32", vocabulary=table.vocabulary, padding=table.padding)


def _next_tokens(tokens: np.ndarray, padding: int | None) -> np.ndarray:
    """The token that follows each one, or -1 if it is padding."""
    following = tokens[:, 1:]
    return following if padding is None else np.where(following == padding, -1, following)


def _span(indices: np.ndarray) -> str:
    return f"{int(indices.min())} to {int(indices.max())}" if len(indices) else "(none)"
