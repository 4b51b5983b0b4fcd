"""What a run promises, in words that a reader without the code can hold it to."""

import dataclasses
import math
from decimal import ROUND_CEILING, Decimal
from typing import TYPE_CHECKING

from bevel.report.run_files import RunFiles

if TYPE_CHECKING:
    from bevel.accounting.ledger.spent import Spent

UNITS = {
    "example": "one example of the training set",
    "user": "all examples of one user of the training set",
}
OTHERWISE = {
    "ADD_OR_REMOVE_ONE": "had it not been in the data",
    "REPLACE_ONE": "had any other one been in its place",
    "REPLACE_SPECIAL": "had one that contributes nothing been in its place",
}
CHANGED = {
    "ADD_OR_REMOVE_ONE": "added or removed",
    "REPLACE_ONE": "replaced by any other",
    "REPLACE_SPECIAL": "replaced by one that contributes nothing",
}
ENDINGS = {
    "complete": "All steps of the plan were taken.",
    "interrupted": "It was interrupted, and goes on from its last checkpoint when it is started "
    "again.",
    "ended by the budget": "It ended because the next step would have exceeded the budget.",
    "ended by the callback": "It was ended by a callback. If that looked at results of this run, "
    "when it ended depended on the data, and the guarantee is the budget fixed beforehand.",
    "running": "It has not come to its end: it is still running, or it was stopped from outside "
    "and goes on from its last checkpoint when it is started again.",
}


@dataclasses.dataclass(frozen=True)
class Guarantee:
    """What may be claimed, and under which assumptions.

    `claim` is the sentence to quote; `warnings` are reasons why it does not hold as it stands.
    """

    claim: str
    meaning: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]


def guarantee(run: RunFiles, spent: "Spent | None") -> Guarantee:
    """The guarantee of all that the run's ledger has, in words."""
    return Guarantee(
        claim=claim(run, spent),
        meaning=meaning(run, spent),
        facts=facts(run, spent),
        assumptions=assumptions(run),
        warnings=warnings(run, spent),
    )


def spent_of(run: RunFiles) -> "Spent | None":
    """What the ledger says; None without a ledger or a delta, for then nothing can be said."""
    delta = run.record.get("delta")
    if run.ledger is None or (delta is None and run.ledger.terms.budget is None):
        return None
    return run.ledger.spent(delta)


def claim(run: RunFiles, spent: "Spent | None") -> str:
    if spent is None:
        why = "there is no ledger beside it" if run.ledger is None else "no delta was fixed for it"
        return f"What this run spent is not known, for {why}. Nothing can be claimed."
    if not math.isfinite(spent.epsilon):
        return "No noise was added: nothing is protected."
    unit = UNITS[spent.terms.unit]
    if spent.epsilon == 0:
        return "Nothing was charged so far, so nothing of the data was released."
    return (
        f"What was released is ({shown_epsilon(spent.epsilon)}, {spent.delta:g})-differentially "
        f"private for {unit}, {CHANGED[spent.terms.relation]}."
    )


def meaning(run: RunFiles, spent: "Spent | None") -> tuple[str, ...]:
    if spent is None or not 0 < spent.epsilon < math.inf:
        return ()
    unit, otherwise = UNITS[spent.terms.unit], OTHERWISE[spent.terms.relation]
    factor = "e^ε"
    if spent.epsilon < 14:
        factor += f" = {rounded_up(math.exp(spent.epsilon), 3)}"
    return (
        f"Take {unit}. Whatever anyone concludes from what was released (all checkpoints and all "
        "metrics, together), they would have concluded with almost the same probability "
        f"{otherwise}: probabilities differ by at most a factor of {factor}, but for a "
        f"probability of δ = {spent.delta:g}. That holds also for someone who knows all other "
        "data.",
        "It holds if what ran, and when it ended, was chosen without looking at results. Where "
        "what ran next depended on the data, the guarantee is the budget that was fixed "
        f"beforehand: {spent.terms.budget or 'there was none, so there is none'}.",
    )


def facts(run: RunFiles, spent: "Spent | None") -> tuple[tuple[str, str], ...]:
    record = run.record
    terms = run.ledger.terms if run.ledger else None
    unit = str(terms.unit if terms else record.get("unit") or "unit")
    relation = str(terms.relation if terms else record.get("relation") or "not recorded")
    changed = CHANGED.get(relation)
    related = f"one {unit} is {changed} ({relation})" if changed else relation
    rows = [
        ("Unit of privacy", UNITS.get(unit, unit)),
        ("Neighbouring data sets", related),
    ]
    if spent is not None:
        cost = f"ε = {shown_epsilon(spent.epsilon)} at δ = {spent.delta:g}"
        rows.append(("Spent so far", cost))
    budget = terms.budget if terms else None
    rows.append(("Budget fixed beforehand", str(budget) if budget else "none"))
    rows.append(("Runs that are counted", runs_in_words(run)))
    rows.append(("Tuning", "excluded: see the assumptions"))
    return tuple(rows)


def runs_in_words(run: RunFiles) -> str:
    if run.ledger is None:
        return "none: there is no ledger"
    names = run.ledger.runs
    if not names:
        return "none: nothing was charged so far"
    if names == (run.name,):
        return "this one, which is the only one in its ledger"
    shown = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
    return f"all {len(names)} of the ledger, together: {shown}"


def assumptions(run: RunFiles) -> tuple[str, ...]:
    unit = str(run.record.get("unit") or "example")
    several = (
        "Each person's data is in one example. If it is in several, they are protected one by "
        "one, and not together."
        if unit == "example"
        else "Each person's data is under one user id."
    )
    return (
        "Tuning is excluded. The figures cover what is in the ledger. Other runs on the same data "
        "by which settings were chosen are not in them, and choosing among results gives something "
        "away, too.",
        several,
        f"How many {unit}s there are, the settings of the run, and that it took place are public.",
        "The run's secrets (secrets.json) are known to nobody, and its raw records (raw.jsonl, "
        "tensorboard_raw_not_private) only to those who may see the data.",
        "Metrics of evaluation were computed on public or held-out data, as whoever ran it says.",
        "Noise is computed with floating-point numbers and is taken to be the Gaussian noise that "
        "was accounted for; how long steps took is taken to give nothing away.",
    )


def warnings(run: RunFiles, spent: "Spent | None") -> tuple[str, ...]:
    found = []
    if run.record.get("key_is_secret") is False:
        found.append(
            "The noise of this run comes from a known seed, as it is used in tests. Whoever knows "
            "the seed can take the noise away: nothing is protected."
        )
    units = (run.record.get("data") or {}).get("units")
    if spent is not None and units and spent.delta >= 1 / units:
        found.append(
            f"δ = {spent.delta:g} is not below one over the number of {spent.terms.unit}s "
            f"({units}): a mechanism that publishes one of them as it is would be allowed."
        )
    if run.record.get("status") == "ended by the callback":
        found.append(ENDINGS["ended by the callback"])
    return tuple(found)


def ending(run: RunFiles) -> str:
    """How the run ended, if it did."""
    status = str(run.record.get("status") or "not recorded")
    return ENDINGS.get(status, f"Its status is: {status}.")


def shown_epsilon(epsilon: float) -> str:
    """Rounded up, for a smaller epsilon would be a claim that does not hold."""
    if math.isinf(epsilon):
        return "∞"
    return rounded_up(epsilon, 4) if epsilon else "0"


def rounded_up(value: float, digits: int) -> str:
    exact = Decimal(value)
    last = Decimal(1).scaleb(exact.adjusted() - digits + 1)
    text = f"{exact.quantize(last, rounding=ROUND_CEILING):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
