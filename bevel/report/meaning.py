"""Explains what an (epsilon, delta) guarantee says, for readers who are new to it."""

import math
from decimal import Decimal, localcontext
from typing import TYPE_CHECKING

from bevel.accounting.rounding import rounded_up, shown_delta, shown_epsilon
from bevel.report.rounding import percent_up, power_of_ten

if TYPE_CHECKING:
    from bevel.accounting.ledger.spent import Spent

STRONG, MODERATE = 1, 3  # the largest epsilons that are called strong and moderate
NEXT_TO_NOTHING = Decimal("0.999")  # above this, a bound on correct guesses protects nobody
LARGEST_FACTOR = 13  # e^epsilon is written out up to here, and as a power of ten above

WITHOUT = {
    ("example", "ADD_OR_REMOVE_ONE"): "had the example not been in the data",
    ("example", "REPLACE_ONE"): "had any other example been in its place",
    ("example", "REPLACE_SPECIAL"): "had an example that contributes nothing been in its place",
    ("user", "ADD_OR_REMOVE_ONE"): "had the user not been in the data",
    ("user", "REPLACE_ONE"): "had any other user been in their place",
    ("user", "REPLACE_SPECIAL"): "had a user who contributes nothing been in their place",
}
QUESTION = {
    "ADD_OR_REMOVE_ONE": "whether the {unit} was in the data",
    "REPLACE_ONE": "which of two given {unit}s was in the data",
    "REPLACE_SPECIAL": "whether the {unit} was in the data, or one that contributes nothing",
}
ARITHMETIC = (
    "The proof treats clipped sums and Gaussian noise as real numbers. The computer that trained "
    "the model used floating-point numbers, usually float32, and ε does not cover the difference.",
    "The difference can be exploited by someone who sees the exact bits of released parameters or "
    "gradients. From a given sum, the noise can reach only some of the floating-point numbers, so "
    "the last bits can show which sum it was added to (Mironov 2012; Jin et al. 2022 for Gaussian "
    "noise). With bevel, on a plan of one step that samples every example at ε = 0.5, checking "
    "which float32 numbers can be reached at all recognised a planted example in 60 of 60 runs, "
    "with no false alarm in 60 runs without it (benchmarks/floating_point_noise.py). At that ε, a "
    "guess should be right at most 62.3% of the time.",
    "The remedy is exact arithmetic: sums on an integer grid, with discrete Gaussian noise. "
    "bevel.noise_addition has such noise, but plans do not offer it yet.",
)


def definitions(unit: str) -> tuple[str, ...]:
    """Definitions of epsilon and delta, in one sentence each."""
    return (
        f"ε (epsilon) limits how much one {unit} can change what is released: no result becomes "
        f"more than e^ε times as likely because of one {unit}, so a smaller ε is more private.",
        "δ (delta) is a small probability that is allowed on top of that limit; it should be far "
        f"below one over the number of {unit}s.",
    )


def meaning(spent: "Spent", units: int | None = None) -> tuple[str, ...]:
    """What a finite epsilon says. All figures follow from epsilon and delta as displayed."""
    epsilon, delta = Decimal(shown_epsilon(spent.epsilon)), Decimal(shown_delta(spent.delta))
    unit, relation = spent.terms.unit, spent.terms.relation
    bound = guess_bound(epsilon, delta)
    best = (
        "In real-number arithmetic, a guess that uses everything that was released is right at "
        f"most {percent_up(bound)} of the time."
    )
    if bound > NEXT_TO_NOTHING:
        best = (
            "This ε does not rule out a guess that uses what was released and is right more than "
            "99.9% of the time."
        )
    return (
        f"Take any one {unit} of the training set, and anything that someone might conclude from "
        "all that was released together: every checkpoint and every metric. The probability of "
        f"that conclusion is at most {factor(epsilon)} times (e^ε, rounded up) what it would have "
        f"been {WITHOUT[unit, relation]}, plus δ = {shown_delta(spent.delta)}. The same holds the "
        "other way round, and even against someone who knows all other data.",
        f"In terms of an attack: someone guesses {QUESTION[relation].format(unit=unit)}, where "
        "both answers are equally likely beforehand. A blind guess is right 50% of the time. "
        f"{best}",
        _verdict(epsilon, bound, small_delta=not units or spent.delta < 1 / units),
    )


def guess_bound(epsilon: Decimal, delta: Decimal) -> Decimal:
    """How often a guess at even odds can be right: `(exp(epsilon) + delta) / (1 + exp(epsilon))`.

    Such a guess is right with probability `(TPR + 1 - FPR) / 2`. Of all rates that satisfy both
    `TPR <= exp(epsilon) FPR + delta` and `1 - FPR <= exp(epsilon) (1 - TPR) + delta`, it is largest
    where both are equalities: `FPR = 1 - TPR = (1 - delta) / (1 + exp(epsilon))`.
    """
    with localcontext() as context:
        context.prec = 60
        # Above 100 the bound is 1 for all practical purposes, and exp would overflow.
        return 1 - (1 - delta) / (1 + min(epsilon, Decimal(100)).exp())


def factor(epsilon: Decimal) -> str:
    """e^epsilon, rounded up to three digits, or to a power of ten if it is large."""
    if epsilon <= LARGEST_FACTOR:
        return rounded_up(epsilon.exp(), 3)
    return power_of_ten(math.floor(float(epsilon) / math.log(10) * (1 + 1e-12)) + 1)


def _verdict(epsilon: Decimal, bound: Decimal, small_delta: bool) -> str:
    if bound > NEXT_TO_NOTHING:
        return (
            "At this size, ε and δ alone say next to nothing: they allow an attack that is "
            "practically always right. The trade-off curve below uses more than ε and δ, and can "
            "be much sharper. Do not rely on this ε to protect anyone."
        )
    if epsilon > MODERATE:
        return (
            "As a bound on the worst case this is a weak guarantee: the factor is large, and it "
            "does not exclude attacks that are usually right. The trade-off curve below uses more "
            "than ε and δ, and can be much sharper. Private models are often trained at such an ε, "
            "because attacks in practice achieve less than the bound allows; that is experience, "
            "not part of the guarantee."
        )
    if not small_delta:
        return "δ is too large for the guarantee to be called strong, whatever ε is."
    if epsilon > STRONG:
        return (
            "By the usual standards of private machine learning this is a moderate guarantee: it "
            "leaves room for attacks that are clearly better than a blind guess."
        )
    return "By the usual standards of private machine learning this is a strong guarantee."
