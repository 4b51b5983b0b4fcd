"""Index batches in static shapes: padded with -1, to few sizes, so that JAX compiles few programs.

The size of a batch is chance, not an error: a batch that is larger than expected goes to the next
padded size. Dropping examples, drawing again or failing would change the law that the event is
proven for.
"""

import bisect
import dataclasses

import numpy as np

from bevel.checks import whole_number
from bevel.errors import FixArgumentsError

PADDING = -1


def pad_to_multiple_of(
    indices: np.ndarray, multiple: int, microbatch_size: int | None = None
) -> np.ndarray:
    """`indices` followed by rows of -1, so that their number is a multiple of `multiple`.

    An empty batch becomes `multiple` rows of padding: its step still adds noise. Batches of users,
    (users, examples), get rows of -1. With `microbatch_size`, the rows are put in an order in which
    padding fills the last microbatches of `bevel.clipped_grad(..., microbatch_size=...)`: those
    that are all padding are skipped. A row is padding where its (first) index is -1.
    """
    indices = _checked_indices(indices)
    size = max(1, -(-len(indices) // whole_number("multiple", multiple, 1))) * multiple
    return pad_to_size(indices, size, microbatch_size)


def pad_to_size(indices: np.ndarray, size: int, microbatch_size: int | None = None) -> np.ndarray:
    """`indices` followed by rows of -1 up to `size` rows; see `pad_to_multiple_of`."""
    indices = _checked_indices(indices)
    if len(indices) > size:
        raise FixArgumentsError(
            f"{len(indices)} rows do not fit into {size}: take the next padded size. Leaving rows "
            "out would change the law of the batches."
        )
    padded = np.full((size, *indices.shape[1:]), PADDING, indices.dtype)
    places = np.arange(size) if microbatch_size is None else filling_order(size, microbatch_size)
    padded[places[: len(indices)]] = indices
    return padded


def filling_order(size: int, microbatch_size: int) -> np.ndarray:
    """The places of a batch, those of the first microbatch first.

    Microbatch k of n takes the places k, k + n, k + 2n, ...: see `clipping/microbatches.py`.
    """
    if size % whole_number("microbatch_size", microbatch_size, 1):
        raise FixArgumentsError(
            f"{size} rows are not a multiple of microbatch_size={microbatch_size}: pad to a "
            "multiple of it."
        )
    return np.arange(size).reshape(microbatch_size, size // microbatch_size).T.ravel()


def split_and_pad_global_batch(
    indices: np.ndarray, minibatch_size: int, microbatch_size: int | None = None
) -> list[np.ndarray]:
    """Cuts a batch into minibatches of `minibatch_size` rows, the last one padded with -1.

    An empty batch gives one minibatch of padding.
    """
    indices = _checked_indices(indices)
    size = whole_number("minibatch_size", minibatch_size, 1)
    starts = range(0, max(1, len(indices)), size)
    return [pad_to_size(indices[at : at + size], size, microbatch_size) for at in starts]


@dataclasses.dataclass(frozen=True)
class PaddedSizes:
    """A few sizes that batches are padded to, all multiples of `multiple`, in rising order.

    Beyond the last one they go on, each an eighth larger than the one before: every batch has a
    size to be padded to.
    """

    sizes: tuple[int, ...]
    multiple: int = 1

    def size_for(self, batch_size: int) -> int:
        """The smallest padded size with room for `batch_size` rows."""
        place = bisect.bisect_left(self.sizes, batch_size)
        if place < len(self.sizes):
            return self.sizes[place]
        size = self.sizes[-1]
        while size < batch_size:
            size += max(1, size // (8 * self.multiple)) * self.multiple
        return size

    def pad(self, indices: np.ndarray, microbatch_size: int | None = None) -> np.ndarray:
        """`indices` padded with -1 to the smallest size that holds them."""
        return pad_to_size(indices, self.size_for(len(indices)), microbatch_size)


def padded_sizes(
    expected_batch_size: float, *, multiple: int = 1, count: int = 3, spread: float | None = None
) -> PaddedSizes:
    """`count` sizes for batches around `expected_batch_size`, which waste little.

    Steps of a few standard deviations: a binomial batch exceeds the last size less than once in a
    hundred million steps, and even then is only padded further. `spread` is the standard deviation,
    by default the largest that a Poisson batch has, the root of the expected size; 0 for batches of
    one size.

    The choice uses the law of the sizes, never a drawn batch. Make `multiple` a multiple of the
    devices, and of the microbatch size.
    """
    whole_number("count", count, 1)
    whole_number("multiple", multiple, 1)
    if not (np.isfinite(expected_batch_size) and expected_batch_size >= 0):
        raise FixArgumentsError(
            f"expected_batch_size={expected_batch_size}: give a number of at least 0."
        )
    deviation = np.sqrt(expected_batch_size) if spread is None else spread
    wanted = expected_batch_size + deviation * np.linspace(0, 6, count + 1)[1:]
    blocks = np.maximum(1, np.ceil(wanted / multiple - 1e-9)).astype(int)
    return PaddedSizes(tuple(int(b) * multiple for b in np.unique(blocks)), multiple)


def _checked_indices(indices: np.ndarray) -> np.ndarray:
    """`indices` as an array of signed integers, examples or users along the first dimension."""
    indices = np.asarray(indices)
    if indices.size == 0 and indices.dtype == np.float64:
        indices = indices.astype(np.int64)  # np.array([]) is of floats
    if indices.ndim == 0 or not np.issubdtype(indices.dtype, np.signedinteger):
        raise FixArgumentsError(
            f"indices of dtype {indices.dtype} and shape {indices.shape}: give an array of signed "
            "integers with at least one dimension (padding is -1)."
        )
    return indices
