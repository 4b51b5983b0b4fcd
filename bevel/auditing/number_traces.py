"""Private numbers in released files: raw values, and summaries of the noise.

- A released number that is equal, in all of its digits, to one in `private/raw.jsonl`. Numbers of
  fewer than 9 digits are left out, because they are equal by chance.
- A released number that is the norm, sum, mean or standard deviation of a noise buffer in
  `private/checkpoints/`, or the norm of all of them. Two unrelated numbers of one order of
  magnitude agree to a relative t with a probability of about 2 t. So t is 5e-4 over the number of
  pairs that are compared, and at most 1e-6: an honest run has a trace of this kind by chance with a
  probability of about 1e-3. In a run with many numbers, t is below the rounding of float32, and
  only summaries in float64 are found.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bevel.auditing.noise_traces import is_noise
from bevel.auditing.released_files import (
    Trace,
    checkpoint_arrays,
    is_real,
    numbers_of,
    other_arrays,
    raw_lines,
    released_numbers,
    shown,
)
from bevel.training.folder import PRIVATE, RELEASED

_FEWEST_DIGITS = 9
_PUBLIC = {"step", "attempt", "clip_norm"}  # raw values that are public or released anyway
_FALSE_ALARM = 1e-3
_CLOSEST = 1e-6  # relative
_SMALLEST_NOISE = 4  # elements: the summary of fewer may be anything
_FEW = 16  # elements of an array that are compared one by one


def number_traces(root: Path) -> Iterator[Trace]:
    """Released numbers that are private."""
    private = {
        value: name
        for line in raw_lines(root)
        for name, value in numbers_of(line)
        if name.split(".")[0] not in _PUBLIC and _digits(value) >= _FEWEST_DIGITS
    }
    numbers = list(released_numbers(root))
    for path, entry, value in numbers:
        if value in private:
            what = f"equal to the raw value of {private[value]}"
            yield Trace(shown(path, root), entry, what)
    numbers += _elements_of_small_arrays(root)
    summaries = _noise_summaries(root)
    known = np.array([abs(value) for value in summaries])
    close = min(_CLOSEST, _FALSE_ALARM / 2 / max(1, len(numbers) * len(known)))
    for path, entry, value in numbers:
        near = np.flatnonzero(np.abs(known - abs(value)) <= close * abs(value))
        if len(near) and value:
            what = list(summaries.values())[near[0]]
            yield Trace(shown(path, root), entry, f"equal to {what} of the run")


def _digits(value: float) -> int:
    return len(repr(value).strip("-0.").replace(".", ""))


def _elements_of_small_arrays(root: Path) -> list[tuple[Path, str, float]]:
    checkpoints = checkpoint_arrays(root / RELEASED)
    arrays = itertools.chain(
        ((path, name, x) for path, found in checkpoints.items() for name, x in found.items()),
        other_arrays(root / RELEASED),
    )
    return [
        (path, name, float(value))
        for path, name, array in arrays
        if is_real(array) and array.size <= _FEW
        for value in array.astype(np.float64).ravel()
        if np.isfinite(value)
    ]


def _noise_summaries(root: Path) -> dict[float, str]:
    """Norm, sum, mean and standard deviation of each noise array, and the norm of all."""
    found: dict[float, str] = {}
    for arrays in checkpoint_arrays(root / PRIVATE).values():
        noise = [
            x.astype(np.float64).ravel()
            for name, x in arrays.items()
            if is_noise(name, x) and x.size >= _SMALLEST_NOISE
        ]
        if not noise:
            continue
        norm = float(np.linalg.norm([np.linalg.norm(x) for x in noise]))
        found[norm] = "the norm of the noise buffers"
        for x in noise:
            found |= {
                float(np.linalg.norm(x)): "the norm of a noise buffer",
                float(x.sum()): "the sum of a noise buffer",
                float(x.mean()): "the mean of a noise buffer",
                float(x.std()): "the standard deviation of a noise buffer",
            }
    return found
