"""Counts above cuts, against loops over thresholds."""

import numpy as np
import pytest

from bevel.auditing.score_cuts import Counts, ScoreCuts


def tied_scores(seed, canaries=60):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 12, canaries) + 2.0, rng.integers(0, 12, canaries + 5) + 0.0


@pytest.mark.parametrize("seed", range(3))
def test_counts_are_those_of_a_loop(seed):
    ins, outs = tied_scores(seed)
    cuts = ScoreCuts(ins, outs)
    values = np.unique(np.concatenate([ins, outs]))[::-1]
    tp, fp = cuts.counts()
    for cut in range(len(values) + 1):
        threshold = values[cut] if cut < len(values) else -np.inf
        assert (tp[cut], fp[cut]) == ((ins > threshold).sum(), (outs > threshold).sum())
        assert cuts.cut_at(threshold) == cut


def test_a_threshold_excludes_equal_scores():
    cuts = ScoreCuts(np.array([1.0, 2.0]), np.array([2.0, np.inf]))
    assert [cuts.cut_at(t) for t in (np.inf, 3.0, 2.0, 1.5, 1.0, -np.inf)] == [0, 1, 1, 2, 2, 3]


@pytest.mark.parametrize("seed", range(3))
def test_corners_and_edges_lose_no_best_point(seed):
    """For every false-positive count, the most true positives that need no more."""
    counts = ScoreCuts(*tied_scores(seed)).counts()
    for kept in (counts.corners(), counts.edges(one_sided=True), counts.edges(one_sided=False)):
        assert set(zip(*kept, strict=True)) <= set(zip(*counts, strict=True))
        for limit in range(counts.false_positives[-1] + 1):
            best = [
                c.true_positives[c.false_positives <= limit].max(initial=0) for c in (counts, kept)
            ]
            assert best[0] == best[1]


def test_corners_are_found_where_scores_are_missing():
    """Counts of a resample may repeat, because some scores were not drawn."""
    counts = Counts(np.array([0, 0, 0, 2, 2, 2]), np.array([0, 0, 1, 1, 1, 3]))
    assert [c.tolist() for c in counts.corners()] == [[0, 2, 2], [0, 1, 3]]
