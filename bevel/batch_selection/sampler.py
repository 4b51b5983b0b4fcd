"""The base of the samplers, and of those that give the batch of any step at once."""

import abc
from collections.abc import Iterator

import numpy as np

from bevel.batch_selection.proven_event import Participation, ProvenEvent
from bevel.batch_selection.randomness import RngType, fixed_seed, seed_of
from bevel.checks import whole_number
from bevel.errors import FixArgumentsError


class BatchSelectionStrategy(abc.ABC):
    """Selects the examples of every step."""

    @abc.abstractmethod
    def batch_iterator(self, num_examples: int, rng: RngType = None) -> Iterator[np.ndarray]:
        """One 1-D array of int64 indices per step.

        `rng` is a Generator (16 bytes are taken from it), an int, or None for the entropy of the
        operating system.
        """

    def participation(self) -> Participation:
        """How often one example can take part."""
        raise FixArgumentsError(
            f"{type(self).__name__} does not say how often one example takes part: define "
            "`participation`."
        )

    def proven_event(self, num_examples: int, num_bands: int = 1) -> ProvenEvent:
        """The event of these batches with noise that is correlated over `num_bands` steps.

        `num_bands=1` is independent noise (DP-SGD). The noise multiplier of the event is the
        standard deviation of the noise, divided by the bound of one example's contribution and by
        the largest column norm of the matrix whose inverse correlates the noise. Bands that reach
        from one use of an example to the next are an error: nothing is proven for them.
        """
        raise FixArgumentsError(
            f"no event is proven for {type(self).__name__}: define `proven_event`, or use one of "
            "the samplers of bevel.batch_selection."
        )

    def unamplified_event(self) -> ProvenEvent:
        """The event for noise of any correlation, scaled to the sensitivity of the whole run.

        That is the sensitivity over all patterns of use that `participation()` allows: the chance
        in the selection counts for nothing.
        """
        self.participation()  # raises where there is no such sensitivity
        return ProvenEvent("gaussian_event", {"participations": 1}, self.selection_relations())

    def selection_relations(self) -> tuple[str, ...]:
        """Relations under which neighbours select alike: only the one example's data differ."""
        raise FixArgumentsError(
            f"{type(self).__name__} does not say which neighbours select alike: define "
            "`selection_relations`."
        )

    def check_bands(self, num_bands: int) -> None:
        """Raises if noise correlated over `num_bands` steps joins two uses of one example."""
        separation = self.participation().min_separation
        if whole_number("num_bands", num_bands, 1) > separation:
            raise FixArgumentsError(
                f"num_bands={num_bands}, but {type(self).__name__} may use an example again after "
                f"{separation} step{'s' * (separation > 1)}: the noise of both uses would be "
                "correlated, and no amplification is proven for that. Use fewer bands, a longer "
                "cycle, or `unamplified_event`."
            )


class RandomAccessSampler(BatchSelectionStrategy):
    """A sampler whose batches can be had in any order, and in parts.

    Subclasses say how large the batch of a step is, and give any of its rows.
    """

    iterations: int

    @abc.abstractmethod
    def _size(self, step: int, num_examples: int, seed: int) -> int:
        """Rows of the batch of a step, over all processes."""

    @abc.abstractmethod
    def _rows(self, step: int, num_examples: int, seed: int, start: int, stop: int) -> np.ndarray:
        """Rows `start` to `stop` of that batch."""

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
        """The indices of step `step`, without drawing the steps before it.

        The same as the iterator's for the same int. With several processes, the share of one: the
        shares are disjoint, their sizes differ by at most one, and together, in order, they are
        the batch that a single process draws.
        """
        seed = fixed_seed(rng)
        size = self.batch_size_at(step, num_examples, seed)
        start, stop = share(size, process_index, process_count)
        return self._rows(step, num_examples, seed, start, stop).astype(np.int64, copy=False)

    def batch_size_at(self, step: int, num_examples: int, rng: int) -> int:
        """Rows of the batch of a step over all processes: what they pad their shares by."""
        checked_step(step, self.iterations)
        return self._size(step, whole_number("num_examples", num_examples, 0), fixed_seed(rng))


def checked_step(step: int, iterations: int) -> int:
    """`step`, if it is one of the steps that were accounted for."""
    if whole_number("step", step, 0) >= iterations:
        raise FixArgumentsError(
            f"step={step}: there are {iterations} iterations, counted from 0. More steps than "
            "were accounted for have no guarantee."
        )
    return step


def share(size: int, process_index: int, process_count: int) -> tuple[int, int]:
    """The rows of `size` that belong to one process: where they begin and where they end."""
    count = whole_number("process_count", process_count, 1)
    if whole_number("process_index", process_index, 0) >= count:
        raise FixArgumentsError(
            f"process_index={process_index} of process_count={count}: processes count from 0."
        )
    return size * process_index // count, size * (process_index + 1) // count
