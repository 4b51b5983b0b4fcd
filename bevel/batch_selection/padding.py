"""Pads index batches with -1 to a few sizes, so that JAX compiles few programs.

A batch that is larger than expected is padded to the next size. Dropping examples, redrawing or
failing because of the size would change the distribution that the event is proven for.
"""

import bisect
import dataclasses
import itertools

import numpy as np

from bevel.checks import finite_number, instance, shown, whole_number, without_mask
from bevel.errors import FixArgumentsError

PADDING = -1
# A batch is padded by up to this many rows, all of which are computed.
_MOST_ROWS = 2**24
_WHY = "Every row of padding takes as much time as an example."


def pad_to_multiple_of(
    indices: np.ndarray, multiple: int, microbatch_size: int | None = None
) -> np.ndarray:
    """Appends rows of -1 to `indices` until their number is a multiple of `multiple`.

    An empty batch stays empty; its step still adds noise. `PaddedSizes.pad` always pads. Batches of
    users, of shape (users, examples), get rows of -1. With `microbatch_size`, the rows are ordered
    so that padding fills the last microbatches of `bevel.clipped_grad(..., microbatch_size=...)`,
    which skips microbatches that are all padding. A row is padding if its (first) index is -1.
    """
    indices = _checked_indices(indices)
    size = -(-len(indices) // whole_number("multiple", multiple, 1, _MOST_ROWS, _WHY)) * multiple
    return pad_to_size(indices, size, microbatch_size)


def pad_to_size(indices: np.ndarray, size: int, microbatch_size: int | None = None) -> np.ndarray:
    """Appends rows of -1 to `indices` up to `size` rows; see `pad_to_multiple_of`."""
    indices = _checked_indices(indices)
    if len(indices) > size:
        raise FixArgumentsError(
            f"{len(indices)} rows do not fit into {size}: use the next padded size. Dropping rows "
            "would change the distribution of the batches."
        )
    padded = np.full((size, *indices.shape[1:]), PADDING, indices.dtype)
    order = np.arange(size) if microbatch_size is None else filling_order(size, microbatch_size)
    padded[order[: len(indices)]] = indices
    return padded


def filling_order(size: int, microbatch_size: int) -> np.ndarray:
    """The rows of a batch, with those of the first microbatch first.

    Microbatch k of n takes rows k, k + n, k + 2n, ...: see `clipping/accumulate/microbatches.py`.
    """
    count = _microbatches(size, microbatch_size)
    return np.arange(size).reshape(microbatch_size, count).T.ravel()


def rows_at(places: np.ndarray, size: int, microbatch_size: int | None = None) -> np.ndarray:
    """The rows of a batch that `pad_to_size` puts at these places of `size` places.

    Rows beyond the end of the batch are padding.
    """
    if microbatch_size is None:
        return places
    within, microbatch = np.divmod(places, _microbatches(size, microbatch_size))
    return microbatch * microbatch_size + within


def _microbatches(size: int, microbatch_size: int) -> int:
    if size % whole_number("microbatch_size", microbatch_size, 1):
        raise FixArgumentsError(
            f"{size} rows are not a multiple of microbatch_size={microbatch_size}: pad to a "
            "multiple of microbatch_size."
        )
    return size // microbatch_size


def split_and_pad_global_batch(
    indices: np.ndarray, minibatch_size: int, microbatch_size: int | None = None
) -> list[np.ndarray]:
    """Splits a batch into minibatches of `minibatch_size` rows and pads the last one with -1.

    An empty batch gives one minibatch of padding.
    """
    indices = _checked_indices(indices)
    size = whole_number("minibatch_size", minibatch_size, 1, _MOST_ROWS, _WHY)
    starts = range(0, max(1, len(indices)), size)
    return [pad_to_size(indices[i : i + size], size, microbatch_size) for i in starts]


@dataclasses.dataclass(frozen=True)
class PaddedSizes:
    """The sizes that batches are padded to: multiples of `multiple`, in increasing order.

    Larger batches are padded to further sizes, each an eighth larger than the one before, so there
    is a padded size for every batch.
    """

    sizes: tuple[int, ...]
    multiple: int = 1

    def __post_init__(self) -> None:
        multiple = whole_number("multiple", self.multiple)
        hint = "a tuple of at least one size, in increasing order"
        sizes = tuple(instance("sizes", self.sizes, tuple | list, hint))
        numbers = [whole_number("a size", size) for size in sizes]
        rising = all(a < b for a, b in itertools.pairwise(numbers))
        if not numbers or not rising or any(number % multiple for number in numbers):
            raise FixArgumentsError(
                f"sizes={shown(sizes)} with multiple={multiple}: pass {hint}, each divisible by "
                f"{multiple}."
            )
        object.__setattr__(self, "sizes", sizes)

    def size_for(self, batch_size: int) -> int:
        """The smallest padded size with room for `batch_size` rows."""
        index = bisect.bisect_left(self.sizes, batch_size)
        if index < len(self.sizes):
            return self.sizes[index]
        size = self.sizes[-1]
        while size < batch_size:
            size += max(1, size // (8 * self.multiple)) * self.multiple
        return size

    def pad(self, indices: np.ndarray, microbatch_size: int | None = None) -> np.ndarray:
        """Pads `indices` with -1 to the smallest size that holds them."""
        return pad_to_size(indices, self.size_for(len(indices)), microbatch_size)


def padded_sizes(
    expected_batch_size: float, *, multiple: int = 1, count: int = 3, spread: float | None = None
) -> PaddedSizes:
    """Chooses up to `count` padded sizes for batches around `expected_batch_size`.

    The largest size is six standard deviations above the expected one. If you expect 200 examples
    or more, a Poisson batch exceeds it less than once in a hundred million steps; it is then padded
    further. `spread` is the standard deviation of the batch size: by default the square root of the
    expected size, an upper bound for Poisson sampling. Use 0 for fixed-size batches.

    The choice depends on the distribution of the sizes, never on drawn batches. Make `multiple` a
    multiple of the number of devices and of the microbatch size.
    """
    whole_number("count", count, 1, 1000, "Each size has a compiled program.")
    whole_number("multiple", multiple, 1)
    most = 2.0**50  # so that the largest size is exact in float64
    hint = "the mean batch size"
    expected_batch_size = finite_number("expected_batch_size", expected_batch_size, hint, 0, most)
    if spread is not None:
        hint = "the standard deviation of the batch size"
        spread = finite_number("spread", spread, hint, 0, most)
    deviation = np.sqrt(expected_batch_size) if spread is None else spread
    sizes = expected_batch_size + deviation * np.linspace(0, 6, count + 1)[1:]
    blocks = np.maximum(1, np.ceil(sizes / multiple - 1e-9)).astype(int)
    return PaddedSizes(tuple(int(b) * multiple for b in np.unique(blocks)), multiple)


def _checked_indices(indices: np.ndarray) -> np.ndarray:
    """Returns `indices` as an array of signed integers, examples or users along the first axis."""
    try:
        indices = np.asarray(without_mask("indices", indices))
    except (TypeError, ValueError, OverflowError):
        indices = np.empty((), object)
    if indices.size == 0 and indices.dtype == np.float64:
        indices = indices.astype(np.int64)  # np.array([]) is float64
    if indices.ndim == 0 or not np.issubdtype(indices.dtype, np.signedinteger):
        raise FixArgumentsError(
            f"indices has dtype {indices.dtype} and shape {indices.shape}: pass an array of signed "
            "integers with at least one dimension (padding is -1)."
        )
    return indices
