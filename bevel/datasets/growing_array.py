"""`GrowingArray`: rows that are appended, in memory or, once they are many, in a temporary file."""

import tempfile
from typing import Any

import numpy as np

MEMORY_LIMIT = 1 << 28


class GrowingArray:
    """Collects rows of one shape. Above `limit` bytes, they move to a memory-mapped file.

    The file is in the folder for temporary files (`TMPDIR`). It has no name, so the operating
    system frees its space when the process ends, however it ends, and no copy of the data is left.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Any, limit: int = MEMORY_LIMIT) -> None:
        self.shape, self.dtype, self.limit = shape, np.dtype(dtype), limit
        self._chunks: list[np.ndarray] = []
        self._file: Any = None
        self._length = self._bytes = 0

    def append(self, rows: np.ndarray) -> None:
        rows = np.ascontiguousarray(rows, self.dtype).reshape(len(rows), *self.shape)
        self._length += len(rows)
        self._bytes += rows.nbytes
        self._chunks.append(rows)
        if self._file is None and self._bytes > self.limit:
            self._file = tempfile.TemporaryFile(prefix="bevel-data-")  # noqa: SIM115 - mapped below
        if self._file is not None:
            for chunk in self._chunks:
                self._file.write(chunk.tobytes())
            self._chunks.clear()

    def array(self) -> np.ndarray:
        """All rows, as an array or a memory-mapped one. Call it once, at the end."""
        if self._file is None:
            empty = np.zeros((0, *self.shape), self.dtype)
            return np.concatenate([empty, *self._chunks])
        with self._file as file:  # the mapping outlives the file object
            file.flush()
            return np.memmap(file, self.dtype, "r", 0, (self._length, *self.shape))
