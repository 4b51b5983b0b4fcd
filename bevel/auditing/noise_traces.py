"""Noise in released arrays: arrays that are noise alone, without the sums that it should protect.

The noise of a run is known from the buffers in `private/checkpoints/`. A released array is compared
with all noise vectors of its size by least squares: how much of it is left after the best affine
combination of them is subtracted? This finds copies that are scaled, shifted, cast to fewer bits,
added up over buffers or leaves, or covered by a little other noise.

Noised sums contain noise too, but the sums are left. So an array is a trace if less is left than a
quarter of the smallest signal-to-noise ratio of the run (from `private/raw.jsonl`), and at most 5%.

False alarms: by chance, k noise vectors and a constant fit n independent numbers so well that at
most the share r of their norm is left with the probability I(r^2; (n - k - 1) / 2, k / 2), where I
is the regularised incomplete beta function. An array is a trace only if this, times the number of
comparisons, is at most 1e-6.

A parameter whose gradients are all zero is no false alarm: its noised sums are noise alone, which
protects nothing. The optimizer state of a parameter is therefore left out if the parameter itself
moved by noise alone. Parameters and their averages are left out altogether, for the same reason.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from scipy import special

from bevel.auditing.arguments import Floats
from bevel.auditing.released_files import (
    Trace,
    checkpoint_arrays,
    is_real,
    other_arrays,
    raw_lines,
    shown,
)
from bevel.training.folder import PRIVATE, RELEASED

FALSE_ALARM = 1e-6  # the probability of a trace by chance, in a whole run
_ROUNDING = 1e-5  # of the norm: what rounding leaves of a float32 array
_MOST = 0.05  # of the norm: the most that may be left
_SHARE = 0.25  # of the signal-to-noise ratio
_ELEMENTS = 100_000  # of an array that are compared
_PARAMETERS = ("params", "average")
_WHAT = "a linear combination of the noise buffers of the run"
_Arrays = Mapping[str, np.ndarray]


def noise_traces(root: Path) -> Iterator[Trace]:
    """Released arrays that are noise alone."""
    vectors = _noise_vectors(root)
    if not vectors:
        return
    checkpoints = checkpoint_arrays(root / RELEASED)
    entries = [
        *((path, name, x) for path, found in checkpoints.items() for name, x in found.items()),
        *other_arrays(root / RELEASED),
    ]
    entries = [entry for entry in entries if is_real(entry[2]) and entry[2].any()]
    parts = sum(len(_with_rows(array)) for _, _, array in entries)
    comparisons = parts * max(map(len, vectors.values()))
    tolerance = _tolerance(root)
    for path, name, array in entries:
        if path in checkpoints and name.split(".")[0] in _PARAMETERS:
            continue
        for row, own in enumerate(_with_rows(array)):
            noise = vectors.get(own.size, [])
            if not is_combination(own, noise, comparisons, tolerance):
                continue
            if not _moved_by_noise(name, path, checkpoints, vectors, comparisons, tolerance):
                part = f"[{row - 1}]" if row else ""
                yield Trace(shown(path, root), f"{name}{part}", _WHAT)
            break


def _noise_vectors(root: Path) -> dict[int, list[Floats]]:
    """All noise vectors in the private half, by their sizes: arrays and their rows."""
    vectors: dict[int, list[Floats]] = {}
    for arrays in checkpoint_arrays(root / PRIVATE).values():
        for name, array in arrays.items():
            if is_noise(name, array):
                for own in _with_rows(array):
                    vectors.setdefault(own.size, []).append(_sampled(own))
    return vectors


def is_noise(name: str, array: np.ndarray) -> bool:
    """Whether a private array holds noise, and not what an audit knows of other examples."""
    return is_real(array) and array.ndim > 0 and bool(array.any()) and not name.endswith("others")


def _with_rows(array: np.ndarray) -> list[np.ndarray]:
    """An array and its rows: buffers are stacked along the first dimension."""
    return [array, *(array if array.ndim > 1 else ())]


def _sampled(array: np.ndarray) -> Floats:
    """The elements of an array, or of a large one the same random ones for each of its size.

    If an array is a combination of others, so are their elements at any places.
    """
    flat = array.ravel()
    if flat.size > _ELEMENTS:
        flat = flat[np.random.default_rng(0).integers(0, flat.size, _ELEMENTS)]
    return flat.astype(np.float64)


def is_combination(
    array: np.ndarray, noise: list[Floats], comparisons: int, tolerance: float
) -> bool:
    """Whether an array is an affine combination of noise vectors, and not by chance.

    All vectors are used together, or one at a time if there are too many for that.
    """
    values = _sampled(array)
    if not noise or values.size < 4 or not np.isfinite(values).all():
        return False
    values = values - values.mean()
    length = np.linalg.norm(values)
    if length == 0:
        return False
    tolerance = max(tolerance, 2 * float(jnp.finfo(array.dtype).eps))
    for vectors in [noise, *([vector] for vector in noise)] if len(noise) > 1 else [noise]:
        if len(vectors) > values.size - 3:
            continue
        matrix = np.stack(vectors, axis=1)
        matrix = matrix - matrix.mean(axis=0)
        norms = np.linalg.norm(matrix, axis=0)
        matrix = matrix[:, norms > 0] / norms[norms > 0]
        if not matrix.size:
            continue
        rest = values - matrix @ np.linalg.lstsq(matrix, values, rcond=None)[0]
        left = max(float(np.linalg.norm(rest) / length), float(np.finfo(np.float64).eps))
        fitted = matrix.shape[1]
        chance = special.betainc((values.size - fitted - 1) / 2, fitted / 2, min(left**2, 1.0))
        if left <= tolerance and chance * comparisons <= FALSE_ALARM:
            return True
    return False


def _tolerance(root: Path) -> float:
    """What may be left of an array that is noise alone, as a share of its norm."""
    ratios = [line["signal_to_noise"] for line in raw_lines(root) if line.get("signal_to_noise")]
    return float(np.clip(_SHARE * min(ratios, default=0.0), _ROUNDING, _MOST))


def _moved_by_noise(
    name: str,
    path: Path,
    checkpoints: Mapping[Path, _Arrays],
    vectors: Mapping[int, list[Floats]],
    comparisons: int,
    tolerance: float,
) -> bool:
    """Whether an entry belongs to a parameter whose gradients were zero: it moved by noise alone.

    The parameter itself is compared with the noise, and its change since another checkpoint.
    """
    if path not in checkpoints:
        return False
    for entry, now in checkpoints[path].items():
        kind, _, parameter = entry.partition(".")
        if kind not in _PARAMETERS or not name.endswith(f".{parameter}"):
            continue
        others = [arrays[entry] for at, arrays in checkpoints.items() if at != path]
        moved = [now, *(now.astype(np.float64) - other for other in others)]
        noise = vectors.get(now.size, [])
        return any(is_combination(x, noise, comparisons, tolerance) for x in moved if x.any())
    return False
