"""Canaries in released arrays: what an audited run wrote to its files shows more than promised.

Every released file is a function of the noised sums. So an attacker who looks at any one array must
not find the canaries that are held in more easily than the guarantee allows. Each released array
with the shape of a trained parameter, or a stack of such arrays, is an attack of its own: its
entries at the coordinates of the canaries, and the same with the opposite sign, are scores. This
finds sums that were released without noise, or with too little, wherever they were written.

False alarms: the significance of each bound is 0.001 over the number of bounds.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from bevel.auditing.arguments import Floats
from bevel.auditing.canaries import GradientCanaries
from bevel.auditing.canary_score_auditor import CanaryScoreAuditor
from bevel.auditing.released_files import Trace, checkpoint_arrays, is_real, other_arrays, shown
from bevel.training.folder import RELEASED

_SIGNIFICANCE = 1e-3  # of all arrays of a run together
_FEWEST = 64  # canaries of one leaf: fewer show little


def canary_traces(
    root: Path,
    canaries: GradientCanaries,
    shapes: Sequence[tuple[int, ...]],
    exceeds: Callable[[float], bool],
    delta: float,
) -> tuple[Trace, ...]:
    """Released arrays that show more of the canaries than the guarantee allows.

    Args:
      root: the folder of the audited run.
      canaries: the canaries of this run.
      shapes: the shapes of the leaves of the trained parameters.
      exceeds: whether a lower bound on epsilon is above the promise.
      delta: that of the promise.
    """
    checkpoints = checkpoint_arrays(root / RELEASED)
    arrays = [
        *((path, name, x) for path, found in checkpoints.items() for name, x in found.items()),
        *other_arrays(root / RELEASED),
    ]
    attacks = [
        (path, name, held_in, sign * scores)
        for path, name, array in arrays
        if is_real(array)
        for scores, held_in in _scores_in(array, canaries, shapes)
        for sign in (1, -1)
    ]
    found = {}
    for path, name, held_in, scores in attacks:
        auditor = CanaryScoreAuditor(scores[held_in], scores[~held_in])
        bound = auditor.epsilon_one_run_fdp(_SIGNIFICANCE / len(attacks), delta, one_sided=False)
        if exceeds(bound):
            what = f"its entries tell {len(scores)} canaries apart, which shows epsilon {bound:.3g}"
            found[shown(path, root), name] = Trace(shown(path, root), name, what)
    return tuple(found.values())


def _scores_in(
    array: np.ndarray, canaries: GradientCanaries, shapes: Sequence[tuple[int, ...]]
) -> Iterator[tuple[Floats, np.ndarray]]:
    """The entries at the coordinates of the canaries, and their coins, for each leaf that fits."""
    for k, numbers in canaries.by_leaf().items():
        held_in = canaries.held_in[numbers]
        if len(numbers) < _FEWEST or held_in.all() or not held_in.any():
            continue
        shape = shapes[k]
        stack = [array] if array.shape == shape else list(array) if array.shape[1:] == shape else []
        places = tuple(canaries.index[numbers, i] for i in range(len(shape)))
        for own in stack:
            scores = own[places].astype(np.float64)
            if np.isfinite(scores).all() and np.ptp(scores) > 0:
                yield scores, held_in
