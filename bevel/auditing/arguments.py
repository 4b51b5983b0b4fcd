"""Checks of scores, rates and probabilities that users pass."""

from typing import Any

import numpy as np
import numpy.typing as npt

from bevel.checks import is_real, reals, shown, without_mask
from bevel.errors import FixArgumentsError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def checked_scores(name: str, scores: npt.ArrayLike) -> Floats:
    """Returns the scores as a float64 array. They may be infinite, because only order matters."""
    without_mask(name, scores)
    try:
        array = np.asarray(scores)
        if array.dtype.kind not in "fiu" and "float" not in array.dtype.name:
            raise TypeError(f"dtype {array.dtype}")
        array = array.astype(np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise FixArgumentsError(
            f"{name} are not numbers: pass a one-dimensional array of scores."
        ) from error
    if array.ndim != 1:
        raise FixArgumentsError(
            f"{name} have shape {array.shape}, but must be one-dimensional: pass one score "
            "for each canary."
        )
    if not array.size:
        raise FixArgumentsError(
            f"{name} must not be empty: pass the scores of at least one held-in and one held-out "
            "canary."
        )
    if np.isnan(array).any():
        raise FixArgumentsError(
            f"{name} must not contain NaN, but {np.isnan(array).sum()} of {array.size} are: find "
            "out why the attack failed on these canaries. Dropping them may bias the audit."
        )
    return array


def checked_significance(significance: Any) -> float:
    """Returns the probability with which a bound may be wrong."""
    # Half of a smaller one would be 0.
    if not (is_real(significance) and 1e-300 <= significance < 1):
        raise FixArgumentsError(
            f"significance={shown(significance)} must be at least 1e-300 and below 1: pass the "
            "probability with which the bound may be wrong, such as 0.05."
        )
    return float(significance)


def checked_delta(delta: Any) -> float:
    """Returns delta as a float, from 0 to 1."""
    if not (is_real(delta) and 0 <= delta <= 1):
        raise FixArgumentsError(
            f"delta={shown(delta)} must be between 0 and 1: pass the delta of the guarantee that "
            "you audit, such as 1e-5."
        )
    return float(delta)


def checked_fpr(fpr: npt.ArrayLike) -> Floats:
    """Returns false-positive rates as a float64 array of any shape."""
    hint = "it must be between 0 and 1: pass rates, not counts"
    array = reals("fpr", fpr, tuple(range(9)), hint).astype(np.float64)
    if not ((array >= 0) & (array <= 1)).all():
        raise FixArgumentsError(
            f"fpr={shown(fpr)} must be between 0 and 1: pass rates, not counts."
        )
    return array


def checked_prevalence(prevalence: Any) -> float:
    """Returns the prior probability that a canary is held in."""
    if not (is_real(prevalence) and 0 <= prevalence <= 1):
        raise FixArgumentsError(
            f"prevalence={shown(prevalence)} must be between 0 and 1: pass the prior probability "
            "that an example is held in, or None for the share of held-in canaries."
        )
    return float(prevalence)
