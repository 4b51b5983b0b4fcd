"""Which event costs at least as much as another, proven from what is written alone.

`dominates(a, b)` says that for every epsilon the delta of `a` is at least that of `b`, under every
neighbouring relation: every divergence between the outputs of neighbours (hockey-stick, and with it
Rényi) is at least as large. Compositions keep that, part by part (Zhu, Dong and Wang 2022,
arXiv:2106.08567). What has no rule here is not dominated. No accounting is done.

| event | costs at least as much with | because |
| --- | --- | --- |
| Gaussian | less noise | adding the missing noise is postprocessing |
| zCDP | larger rho and xi | what keeps the smaller ones keeps the larger ones |
| Poisson-sampled Gaussian | less noise, a higher probability | postprocessing, and see below |
| otherwise sampled Gaussian | less noise, all else equal | postprocessing |
| balls in bins | less noise, more steps | leaving outputs out is postprocessing |
| a composition | the same parts or dominating ones, and more | leaving outputs out, part by part |

A higher probability: with the batches of all other records fixed (which convexity allows), let P
and Q be the outputs of neighbours at probability p. At probability t p, with t <= 1, the record
that differs is passed over with probability 1 - t more, and then both have the same output R: the
pair is the mixture t (P, Q) + (1 - t) (R, R). Divergences are jointly convex, and that of (R, R) is
the least there is, so the divergence of the mixture is at most that of (P, Q).

Not monotone, so compared only with all else equal: the sizes of samples and of data sets, the cap
of a truncated batch, the number of steps of a random allocation (more steps hide more).
"""

import collections
import functools
import json
import math
from collections.abc import Callable
from typing import Any

Event = dict[str, Any]
Counts = collections.Counter[str]

# Numbers this near each other, relative to their size, differ by rounding.
ROUNDING = 1e-9


def restated(old: Counts, new: Counts) -> Counts:
    """What counts once `new` states anew the steps that `old` was charged for.

    If each part of `old` has a part of `new` to itself that dominates it, `new` counts. A part of
    `new` that costs less by no more than rounding will do too, and the part of `old` then counts in
    its place. Otherwise both count, composed.

    So what counts dominates `old` and dominates `new`, whatever is stated: spending never falls.
    Events are counted by their JSON text.
    """
    needed = collections.Counter({text: count for text, count in old.items() if not _is_free(text)})
    counted = needed & new
    needed, free = needed - counted, new - counted
    takers = {text: [other for other in free if _as_good(other, text)] for text in needed}
    # Those with the fewest takers first: where one event's takers are all among another's, as with
    # noise of several sizes, that finds a part for each if there is one for each.
    for text in sorted(needed, key=lambda text: len(takers[text])):
        for other in takers[text]:
            pairs = min(needed[text], free[other])
            needed[text] -= pairs
            free[other] -= pairs
            counted[other if _text_dominates(other, text) else text] += pairs
    if +needed:
        return old + new
    return counted + free


def _as_good(new: str, old: str) -> bool:
    """Whether `new` dominates `old`, or would but for rounding."""
    return _text_dominates(new, old) or (
        _text_dominates(old, new) and _alike(json.loads(new), json.loads(old))
    )


@functools.lru_cache(maxsize=1024)
def _text_dominates(a: str, b: str) -> bool:
    return dominates(json.loads(a), json.loads(b))


def _is_free(text: str) -> bool:
    return json.loads(text)["kind"] == "NoOpDpEvent"


def dominates(a: Event, b: Event) -> bool:
    """Whether `a` is proven to cost at least as much as `b`."""
    if a == b or b["kind"] == "NoOpDpEvent" or a["kind"] == "NonPrivateDpEvent":
        return True
    if a["kind"] != b["kind"]:
        return False
    rules = MONOTONE.get(a["kind"], {})
    if a["kind"] == "BallsInBinsDpEvent" and _same_bands(a, b):
        rules = rules | {"iterations": _at_least}
    return all(
        a[name] == b[name] or (name in rules and rules[name](a[name], b[name])) for name in a
    )


def _at_most(a: float, b: float) -> bool:
    return a <= b


def _at_least(a: float, b: float) -> bool:
    return a >= b


def _less_noise(a: Event, b: Event) -> bool:
    """Both Gaussian: the only events of which sampling is accounted for."""
    return a["kind"] == b["kind"] == "GaussianDpEvent" and dominates(a, b)


# Kind -> the fields that may differ, and how `a` must differ in them from `b` to dominate it.
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


def _same_bands(a: Event, b: Event) -> bool:
    """Whether the steps of the shorter run of balls in bins are the first ones of the longer.

    Noise is relative to the norm of the first column of C, so all its bands must be in both runs.
    """
    bands = b["strategy"]
    toeplitz = not isinstance(bands[0], list)
    return toeplitz and a["strategy"] == bands and len(bands) <= b["iterations"]


def _alike(a: Any, b: Any) -> bool:
    """Whether two JSON values are the same but for the rounding of fractions."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_alike(a[name], b[name]) for name in a)
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=ROUNDING)
    return a == b
