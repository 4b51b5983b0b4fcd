"""Scores as ranks: how many held-in and held-out canaries are above each possible threshold."""

from typing import NamedTuple

import numpy as np

from bevel.auditing.arguments import Floats, Ints


class Counts(NamedTuple):
    """True and false positives at cut 0, 1, ..., where cut c lies below c distinct scores."""

    true_positives: Ints
    false_positives: Ints

    def edges(self, one_sided: bool) -> "Counts":
        """The cuts with the most true positives for their false positives.

        If not one-sided, also those with the fewest false positives for their true positives.
        """
        tp, fp = self
        kept = np.diff(fp, append=fp[-1] + 1) > 0
        if not one_sided:
            kept |= np.diff(tp, prepend=-1) > 0
        return Counts(tp[kept], fp[kept])

    def corners(self) -> "Counts":
        """The cuts with the most true positives for their false positives, and the last cut.

        Of cuts with equal true positives, only the one with the fewest false positives is kept. So
        whatever grows with the true-positive rate, and falls with the false-positive rate, is
        largest at a corner. From one corner to the next, at least one of the rates grows.
        """
        tp, fp = self.edges(one_sided=True)
        kept = np.diff(tp, prepend=-1) > 0
        kept[-1] = True
        return Counts(tp[kept], fp[kept])


class ScoreCuts:
    """The scores of held-in and held-out canaries, replaced by their ranks.

    Rank 0 is the highest score, and equal scores have one rank. All results depend on ranks only,
    so increasing transforms of the scores change nothing, and scores may be infinite.
    """

    def __init__(self, in_scores: Floats, out_scores: Floats) -> None:
        self._values, ranks = np.unique(
            np.concatenate([in_scores, out_scores]), return_inverse=True
        )
        self.num_values = self._values.size
        self.num_in, self.num_out = in_scores.size, out_scores.size
        ranks = self.num_values - 1 - ranks.astype(np.int64).reshape(-1)
        self.in_ranks: Ints = np.sort(ranks[: self.num_in])
        self.out_ranks: Ints = np.sort(ranks[self.num_in :])

    def counts(self, in_ranks: Ints | None = None, out_ranks: Ints | None = None) -> Counts:
        """Positives at every cut, of all canaries or of those with the given ranks."""
        return Counts(
            self._above(self.in_ranks if in_ranks is None else in_ranks),
            self._above(self.out_ranks if out_ranks is None else out_ranks),
        )

    def cut_at(self, threshold: float) -> int:
        """The cut that separates the scores above a threshold from the others."""
        return self.num_values - int(np.searchsorted(self._values, threshold, side="right"))

    def _above(self, ranks: Ints) -> Ints:
        above = np.zeros(self.num_values + 1, np.int64)
        np.cumsum(np.bincount(ranks, minlength=self.num_values), out=above[1:])
        return above
