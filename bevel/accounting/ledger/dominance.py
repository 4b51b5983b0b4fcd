"""Decides from their fields alone whether one event costs at least as much as another.

`dominates(a, b)` means that for every epsilon the delta of `a` is at least that of `b`, under every
neighbouring relation: every divergence between the outputs of neighbours (hockey-stick, and with it
Rényi) is at least as large. Composition preserves this, part by part (Zhu, Dong and Wang 2022,
arXiv:2106.08567). Without a rule here, an event does not dominate another. No accountant is used.

| event | costs at least as much with | because |
| --- | --- | --- |
| Gaussian | less noise | adding the missing noise is postprocessing |
| zCDP | larger rho and xi | a mechanism within the smaller bounds is within the larger ones |
| Poisson-sampled Gaussian | less noise, a higher probability | postprocessing, and see below |
| otherwise sampled Gaussian | less noise, all else equal | postprocessing |
| balls in bins | less noise, more steps | dropping outputs is postprocessing |
| a composition | the same or dominating parts, and more parts | dropping outputs, part by part |

Higher sampling probability: fix the batches of all other records, which convexity allows, and let P
and Q be the output distributions of neighbours at probability p. At probability t p with t <= 1,
the record that differs is skipped with additional probability 1 - t, and then both outputs have the
same distribution R. The pair is the mixture t (P, Q) + (1 - t) (R, R). Divergences are jointly
convex, and that of (R, R) is the smallest possible, so the divergence of the mixture is at most
that of (P, Q).

Some fields are not monotone and must be equal: the sizes of samples and data sets, the cap of a
truncated batch, and the number of steps of a random allocation (more steps hide more). A private
selection has no rule, so all its fields must be equal.
"""

import collections
import functools
import json
import math
from collections.abc import Callable
from typing import Any

Event = dict[str, Any]
Counts = collections.Counter[str]

# Numbers that differ by less than this relative error are treated as equal up to rounding.
ROUNDING = 1e-9


def restated(old: Counts, new: Counts) -> Counts:
    """Returns the events to count after `new` restates the steps that `old` was charged for.

    Events are counted by their JSON text. If each part of `old` can be matched with its own part of
    `new` that dominates it, `new` replaces `old`. A part of `new` that is cheaper only by rounding
    may also be matched, and the part of `old` is then counted in its place. Otherwise both `old`
    and `new` are counted.

    The result always dominates both `old` and `new`, so spending never decreases.
    """
    unmatched = collections.Counter(
        {e: count for e, count in old.items() if json.loads(e)["kind"] != "NoOpDpEvent"}
    )
    counted = unmatched & new
    unmatched, unused = unmatched - counted, new - counted
    candidates = {event: [e for e in unused if _can_replace(e, event)] for event in unmatched}
    # Events with the fewest candidates come first. If the candidate sets are nested, as for
    # Gaussians with different noise, this finds a complete matching whenever there is one.
    for event in sorted(unmatched, key=lambda event: len(candidates[event])):
        for candidate in candidates[event]:
            pairs = min(unmatched[event], unused[candidate])
            unmatched[event] -= pairs
            unused[candidate] -= pairs
            counted[candidate if _text_dominates(candidate, event) else event] += pairs
    if +unmatched:
        return old + new
    return counted + unused


def _can_replace(new: str, old: str) -> bool:
    """Whether `new` dominates `old`, exactly or up to rounding."""
    return _text_dominates(new, old) or (
        _text_dominates(old, new) and _equal_up_to_rounding(json.loads(new), json.loads(old))
    )


@functools.lru_cache(maxsize=1024)
def _text_dominates(a: str, b: str) -> bool:
    return dominates(json.loads(a), json.loads(b))


def dominates(a: Event, b: Event) -> bool:
    """Whether `a` is proven to cost at least as much as `b`."""
    if a == b or b["kind"] == "NoOpDpEvent" or a["kind"] == "NonPrivateDpEvent":
        return True
    if a["kind"] != b["kind"]:
        return False
    rules = MONOTONE.get(a["kind"], {})
    if a["kind"] == "BallsInBinsDpEvent" and _have_same_bands(a, b):
        rules = rules | {"iterations": _at_least}
    return all(
        a[name] == b[name] or (name in rules and rules[name](a[name], b[name])) for name in a
    )


def _at_most(a: float, b: float) -> bool:
    return a <= b


def _at_least(a: float, b: float) -> bool:
    return a >= b


def _less_noise(a: Event, b: Event) -> bool:
    """Compares Gaussians only: accountants support sampling of no other event."""
    return a["kind"] == b["kind"] == "GaussianDpEvent" and dominates(a, b)


# For each kind, the fields that may differ, and how they must compare for `a` to dominate `b`.
MONOTONE: dict[str, dict[str, Callable[[Any, Any], bool]]] = {
    "GaussianDpEvent": {"noise_multiplier": _at_most},
    "ZCDpEvent": {"rho": _at_least, "xi": _at_least},
    "PoissonSampledDpEvent": {"sampling_probability": _at_least, "event": _less_noise},
    "SampledWithReplacementDpEvent": {"event": _less_noise},
    "SampledWithoutReplacementDpEvent": {"event": _less_noise},
    "TruncatedSubsampledGaussianDpEvent": {"noise_multiplier": _at_most},
    "BallsInBinsDpEvent": {"noise_multiplier": _at_most},
    "RandomAllocationDpEvent": {"noise_multiplier": _at_most},
}


def _have_same_bands(a: Event, b: Event) -> bool:
    """Whether the steps of the shorter balls-in-bins run are the first steps of the longer one.

    The noise is relative to the norm of the first column of C, so all bands must fit in both runs.
    """
    bands = b["strategy"]
    toeplitz = not isinstance(bands[0], list)
    return toeplitz and a["strategy"] == bands and len(bands) <= b["iterations"]


def _equal_up_to_rounding(a: Any, b: Any) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal_up_to_rounding(a[name], b[name]) for name in a)
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=ROUNDING)
    return a == b
