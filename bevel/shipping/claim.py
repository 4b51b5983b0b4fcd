"""What a statement says in words. All of it follows from other fields, so anyone can check it."""

import math
from collections.abc import Mapping
from typing import Any

from bevel.checks import in_one_line

CHANGED = {
    "ADD_OR_REMOVE_ONE": "added or removed",
    "REPLACE_ONE": "replaced by any other",
    "REPLACE_SPECIAL": "replaced by one that contributes nothing",
}
PROOF = "real numbers"


def claim_of(
    epsilon: float | None, delta: float | None, unit: str, relation: str, key_is_secret: bool
) -> str:
    """The promise in a sentence. Numbers are not rounded."""
    if not key_is_secret:
        return (
            "Nothing is protected: the noise comes from a known seed, and anyone who knows the "
            "seed can remove it."
        )
    if epsilon is None:
        return (
            "Nothing is promised: some of what was released had no noise, or too little for any "
            "epsilon at this delta."
        )
    things = "the data of one user" if unit == "user" else "one example"
    return (
        f"In real-number arithmetic, everything that the ledger lists up to the stated line, this "
        f"model included, is ({epsilon!r}, {delta!r})-differentially private with respect to "
        f"{things} of the training set, {CHANGED[relation]}."
    )


def status_of(step: int, steps: int, ending: str | None) -> str:
    """How far the run had come."""
    taken = f"step {step} of {steps}"
    if ending is None:
        return (
            f"The run has not ended: this is its last released checkpoint, after {taken}. More "
            "steps may follow, and are charged to the same ledger."
        )
    if step == steps:
        return f"The run is complete: this is the model after {taken}."
    return f"This is the model after {taken}. The run has ended: {in_one_line(repr(ending), 60)}."


def warnings_of(
    delta: float | None, unit: str, units: int | None, key_is_secret: bool, ending: str | None
) -> list[str]:
    """Reasons why the claim is weaker than it looks."""
    found = []
    if not key_is_secret:
        found.append("The noise comes from a known seed, as used in tests.")
    if delta is not None and units and delta >= 1 / units:
        found.append(
            f"delta {delta!r} is not below one over the number of {unit}s ({units}). Publishing a "
            f"randomly chosen {unit} in full would satisfy such a guarantee."
        )
    if ending == "ended by the callback":
        found.append(
            "A callback ended the run. If it looked at results, the guarantee is the budget that "
            "was fixed beforehand."
        )
    return found


def event_in_words(event: Mapping[str, Any]) -> str:
    """Describes an event of a ledger, given as JSON."""
    return WORDS[event["kind"]](event)


def _composed(event: Mapping[str, Any]) -> str:
    parts = [event_in_words(part) for part in event["events"]]
    return "; and ".join(parts) if parts else _no_op(event)


def _self_composed(event: Mapping[str, Any]) -> str:
    times = "once" if event["count"] == 1 else f"{event['count']} times"
    return f"{times}: {event_in_words(event['event'])}"


def _gaussian(event: Mapping[str, Any]) -> str:
    return f"Gaussian noise of {_noise(event)}"


def _noise(event: Mapping[str, Any]) -> str:
    noise = event["noise_multiplier"]
    return f"{noise!r} times the sensitivity" + ("" if noise else " (none)")


def _zcdp(event: Mapping[str, Any]) -> str:
    return f"a mechanism with zCDP of rho {event['rho']!r} and xi {event['xi']!r}"


def _poisson(event: Mapping[str, Any]) -> str:
    return (
        f"{event_in_words(event['event'])}, on batches that each unit joins with probability "
        f"{event['sampling_probability']!r}"
    )


def _without_replacement(event: Mapping[str, Any]) -> str:
    return _sampled(event, "without replacement")


def _with_replacement(event: Mapping[str, Any]) -> str:
    return _sampled(event, "with replacement")


def _sampled(event: Mapping[str, Any], how: str) -> str:
    return (
        f"{event_in_words(event['event'])}, on batches of {event['sample_size']} of "
        f"{event['source_dataset_size']} units, drawn {how}"
    )


def _truncated(event: Mapping[str, Any]) -> str:
    return (
        f"Gaussian noise of {_noise(event)}, on batches that each of {event['dataset_size']} units "
        f"joins with probability {event['sampling_probability']!r}, cut to at most "
        f"{event['truncated_batch_size']}"
    )


def _balls_in_bins(event: Mapping[str, Any]) -> str:
    bands = len(event["strategy"])
    correlated = "" if bands == 1 else f", correlated over {bands} steps"
    return (
        f"Gaussian noise of {_noise(event)}{correlated}, in {event['iterations']} steps; each unit "
        f"takes part every {event['cycle_length']} steps, from a random step on"
    )


def _random_allocation(event: Mapping[str, Any]) -> str:
    return (
        f"Gaussian noise of {_noise(event)}, in {event['iterations']} steps, of which each unit "
        f"takes part in {event['total_participations']} random ones"
    )


def _selected(event: Mapping[str, Any]) -> str:
    kind = {"infinity": "Poisson", 0: "logarithmic", 1: "geometric"}.get(event["shape"])
    law = kind or f"truncated negative binomial (shape {event['shape']!r})"
    return (
        f"the best of a random number of runs, of which nothing else was released; the number is "
        f"{law} with mean {event['mean']!r}, and each run is: {event_in_words(event['event'])}"
    )


def _no_op(event: Mapping[str, Any]) -> str:
    return "nothing that depends on the data"


def _non_private(event: Mapping[str, Any]) -> str:
    return "values without noise"


WORDS = {
    "NoOpDpEvent": _no_op,
    "NonPrivateDpEvent": _non_private,
    "GaussianDpEvent": _gaussian,
    "ZCDpEvent": _zcdp,
    "PoissonSampledDpEvent": _poisson,
    "SampledWithReplacementDpEvent": _with_replacement,
    "SampledWithoutReplacementDpEvent": _without_replacement,
    "TruncatedSubsampledGaussianDpEvent": _truncated,
    "SelfComposedDpEvent": _self_composed,
    "ComposedDpEvent": _composed,
    "BallsInBinsDpEvent": _balls_in_bins,
    "RandomAllocationDpEvent": _random_allocation,
    "RepeatAndSelectDpEvent": _selected,
}


def stated(epsilon: float) -> float | None:
    """An epsilon as a statement has it: None if it is infinite."""
    return epsilon if math.isfinite(epsilon) else None
