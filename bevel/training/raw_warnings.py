"""Warnings in words about the raw metrics of a run, which are in private/raw.jsonl.

They say something about single batches that no epsilon covers, so they are shown to the person who
trains and are never released.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Any

# Clipping and noise vary from step to step, so they are judged over at least this many.
STRETCH = 10
ALMOST_ALL, ALMOST_NONE = 0.99, 0.01


class RawWarnings:
    """Collects raw metrics, and words each kind of warning the first time that it applies."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []
        self._given: set[str] = set()

    def of(self, rows: Sequence[dict[str, Any]]) -> list[str]:
        """The new warnings about the steps in `rows`, and about those since the last stretch."""
        self._rows += rows
        found = {"not finite": _not_finite(rows)}
        if len(self._rows) >= STRETCH:
            found |= {"clipped": _clipping(self._rows), "noise": _noise(self._rows)}
            self._rows = []
        new = {kind: text for kind, text in found.items() if text and kind not in self._given}
        self._given |= new.keys()
        return list(new.values())


def _not_finite(rows: Sequence[dict[str, Any]]) -> str:
    count = int(sum(row["not_finite"] for row in rows))
    examples = int(sum(row["batch_size"] for row in rows))
    if not count:
        return ""
    return (
        f"{count} of the {examples} gradients since the last checkpoint ({count / examples:.2g} of "
        "them) are not finite and count as zero. Look for NaN and infinity in the data, and for "
        "overflow in the loss."
    )


def _clipping(rows: Sequence[dict[str, Any]]) -> str:
    norms = {float(row["clip_norm"]) for row in rows}
    shares = [float(row["clipped_fraction"]) for row in rows]
    shares = [share for share in shares if math.isfinite(share)]  # an empty batch has none
    norm = norms.pop()
    if norms or not shares or not math.isfinite(norm):
        return ""  # a clip norm that adapts finds its place, and infinity does not clip
    share = statistics.fmean(shares)
    where = f"of the gradients of {len(rows)} steps are longer than the clip norm of {norm:.3g}"
    if share >= ALMOST_ALL:
        return (
            f"{share:.1%} {where}, so all examples count about the same. If the model learns "
            "too little, try a larger clip norm."
        )
    if share <= ALMOST_NONE:
        return (
            f"only {share:.1%} {where}. The noise is proportional to the clip norm: a smaller one "
            "would add less noise."
        )
    return ""


def _noise(rows: Sequence[dict[str, Any]]) -> str:
    ratios = [float(row["signal_to_noise"]) for row in rows]
    ratios = [ratio for ratio in ratios if math.isfinite(ratio)]  # no noise, or no example
    if not ratios or statistics.median(ratios) >= 1:
        return ""
    return (
        f"the clipped sum of a step is {statistics.median(ratios):.2g} times as long as its noise "
        f"(the median of {len(rows)} steps). Many steps together may still train well. If they do "
        "not, use larger batches, a larger epsilon or a smaller model."
    )
