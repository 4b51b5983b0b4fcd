"""Base classes of the samplers."""

import abc
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from bevel.batch_selection.proven_event import Participation, ProvenEvent
from bevel.batch_selection.randomness import RngType, fixed_seed, seed_of
from bevel.checks import integers, whole_number
from bevel.errors import FixArgumentsError


class BatchSelectionStrategy(abc.ABC):
    """Base class of all samplers. A sampler selects the examples of each step."""

    @abc.abstractmethod
    def batch_iterator(self, num_examples: int, rng: RngType = None) -> Iterator[np.ndarray]:
        """Yields one 1-D array of int64 indices per step.

        `rng` is an int, a Generator (16 bytes are drawn from it), or None for entropy from the
        operating system.
        """

    def participation(self) -> Participation:
        """How often one example can take part."""
        raise FixArgumentsError(
            f"{type(self).__name__} does not say how often one example takes part: define its "
            "`participation` method."
        )

    def proven_event(self, num_examples: int, num_bands: int = 1) -> ProvenEvent:
        """The event of these batches with noise that is correlated over `num_bands` steps.

        `num_bands=1` is independent noise (DP-SGD). The noise multiplier of the event is the
        standard deviation of the noise, divided by the bound on one example's contribution and by
        the largest column norm of the strategy matrix C (the noise is C^-1 z). Bands that reach
        from one use of an example to the next raise an error, because nothing is proven for them.
        """
        raise FixArgumentsError(
            f"no event is proven for {type(self).__name__}: define its `proven_event` method, or "
            "use one of the samplers in bevel.batch_selection."
        )

    def unamplified_event(self) -> ProvenEvent:
        """The event for noise with any correlation, scaled to the sensitivity of the whole run.

        The sensitivity covers all patterns of use that `participation()` allows. The randomness of
        the selection earns no amplification.
        """
        self.participation()  # raises if the sensitivity is unknown
        return ProvenEvent("gaussian_event", {"participations": 1}, self.selection_relations())

    def selection_relations(self) -> tuple[str, ...]:
        """Relations under which neighbours select the same batches, apart from the one example."""
        raise FixArgumentsError(
            f"{type(self).__name__} does not say under which relations neighbours select the same "
            "batches: define its `selection_relations` method."
        )

    def check_bands(self, num_bands: int) -> None:
        """Raises if noise correlated over `num_bands` steps spans two uses of one example."""
        separation = self.participation().min_separation
        if whole_number("num_bands", num_bands, 1) > separation:
            raise FixArgumentsError(
                f"num_bands={num_bands}, but {type(self).__name__} may use an example again after "
                f"{separation} step{'s' * (separation > 1)}. The noise of both uses would be "
                "correlated, and no amplification is proven for that. Use fewer bands, a longer "
                "cycle, or `unamplified_event`."
            )


class RandomAccessSampler(BatchSelectionStrategy):
    """A sampler that can draw any rows of any step, without drawing anything else.

    Subclasses define the size of the batch of a step, and the example in each of its rows, which
    depends on the seed, the step and the number of the row only.
    """

    iterations: int

    @abc.abstractmethod
    def _size(self, step: int, num_examples: int, seed: int) -> int:
        """The number of rows in the batch of a step, over all processes."""

    @abc.abstractmethod
    def _at_rows(self, step: int, num_examples: int, seed: int, rows: np.ndarray) -> np.ndarray:
        """The examples in these rows of the batch, all below its size."""

    def batch_iterator(self, num_examples: int, rng: RngType = None) -> Iterator[np.ndarray]:
        seed = seed_of(rng)
        whole_number("num_examples", num_examples, 0)
        return (self.batch(step, num_examples, seed) for step in range(self.iterations))

    def batch(
        self,
        step: int,
        num_examples: int,
        rng: int,
        *,
        process_index: int = 0,
        process_count: int = 1,
    ) -> np.ndarray:
        """Returns the indices of step `step`, without drawing the earlier steps.

        They equal those of `batch_iterator` with the same int, and are in random order. With
        several processes, returns the share of process `process_index`, and draws nothing else. The
        shares are disjoint, their sizes differ by at most one, and concatenated in order they are
        the batch that a single process draws.
        """
        size = self.batch_size_at(step, num_examples, rng)
        rows = np.arange(*share(size, process_index, process_count))
        return self._at_rows(step, num_examples, int(rng), rows).astype(np.int64, copy=False)

    def at_rows(self, step: int, num_examples: int, rng: int, rows: np.ndarray) -> np.ndarray:
        """Returns the indices in these rows of a step, which go from 0 to `batch_size_at` - 1.

        The cost depends on the number of rows that you ask for, not on the size of the batch.
        """
        size = self.batch_size_at(step, num_examples, rng)
        rows = integers("rows", rows)
        if len(rows) and not 0 <= np.min(rows) <= np.max(rows) < size:
            raise FixArgumentsError(
                f"rows go from {np.min(rows)} to {np.max(rows)}, but step {step} has {size} rows. "
                "Other examples do not take part in it."
            )
        return self._at_rows(step, num_examples, int(rng), rows).astype(np.int64, copy=False)

    def batch_size_at(self, step: int, num_examples: int, rng: int) -> int:
        """The number of rows of a step over all processes, which determines their padding."""
        checked_step(step, self.iterations)
        return self._size(step, whole_number("num_examples", num_examples, 0), fixed_seed(rng))


class StatefulSampler(BatchSelectionStrategy):
    """A sampler whose batches depend on the earlier ones. Subclasses define `next_batch`."""

    iterations: int

    @abc.abstractmethod
    def next_batch(self, state: Any, num_examples: Any, rng: int) -> tuple[np.ndarray, Any]:
        """Returns the batch of step `state.step` and the next state."""

    def _iterate_from(self, state: Any, num_examples: Any, seed: int) -> Iterator[np.ndarray]:
        while state.step < self.iterations:
            batch, state = self.next_batch(state, num_examples, seed)
            yield batch

    def batch(
        self,
        step: int,
        num_examples: Any,
        rng: int,
        *,
        process_index: int = 0,
        process_count: int = 1,
    ) -> np.ndarray:
        """Returns the indices of step `step` by replaying the earlier steps.

        The time grows with `step`; use `next_batch` to carry the state instead. Every process
        replays the full draw and takes its share of the rows.
        """
        replayed = self.batch_iterator(num_examples, fixed_seed(rng))
        batch = next(itertools.islice(replayed, checked_step(step, self.iterations), None))
        return batch[slice(*share(len(batch), process_index, process_count))]


def checked_step(step: int, iterations: int) -> int:
    """Returns `step`, or raises if it is not one of the `iterations` steps."""
    if whole_number("step", step, 0) >= iterations:
        raise FixArgumentsError(
            f"step={step}: steps go from 0 to {iterations - 1}. Later steps were not accounted for "
            "and have no privacy guarantee. Give the sampler more iterations."
        )
    return step


def share(size: int, process_index: int, process_count: int) -> tuple[int, int]:
    """Returns the first row and the end of one process's share of `size` rows."""
    count = whole_number("process_count", process_count, 1)
    if whole_number("process_index", process_index, 0) >= count:
        raise FixArgumentsError(
            f"process_index={process_index} with process_count={count}: pass an index from 0 to "
            f"{count - 1}."
        )
    return size * process_index // count, size * (process_index + 1) // count
