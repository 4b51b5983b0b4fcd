"""The guarantee of a run in words, for readers who do not know the code."""

import dataclasses
import math
from typing import TYPE_CHECKING

from bevel.accounting.rounding import shown_delta, shown_epsilon
from bevel.report.meaning import ARITHMETIC, definitions, meaning
from bevel.report.run_files import RunFiles
from bevel.report.status import CALLBACK, ended_by_callback
from bevel.report.tuning import NOT_FOR_RELEASE, assumption, is_trial, tuning_rows

if TYPE_CHECKING:
    from bevel.accounting.ledger.header import Budget
    from bevel.accounting.ledger.spent import Spent

UNITS = {
    "example": "one example of the training set",
    "user": "all examples of one user of the training set",
}
CHANGED = {
    "ADD_OR_REMOVE_ONE": "added or removed",
    "REPLACE_ONE": "replaced by any other",
    "REPLACE_SPECIAL": "replaced by one that contributes nothing",
}
MAX_RUNS_LISTED = 20  # whose names are listed


@dataclasses.dataclass(frozen=True)
class _Guarantee:
    """What can be claimed, and under which assumptions.

    Attributes:
      claim: the sentence to quote.
      warnings: reasons why the claim does not hold as stated.
      definitions: explanations of epsilon and delta for newcomers. Like `meaning` and `arithmetic`,
        empty if nothing can be claimed.
      meaning: what the claim says, one string per paragraph.
      arithmetic: the arithmetic in which the claim holds.
      facts: unit, relation, cost and budget, as (name, value).
      assumptions: what the claim assumes.
    """

    claim: str
    warnings: tuple[str, ...]
    definitions: tuple[str, ...]
    meaning: tuple[str, ...]
    arithmetic: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    assumptions: tuple[str, ...]


def guarantee(run: RunFiles, spent: "Spent | None") -> _Guarantee:
    """Describes the guarantee for everything that was charged to the run's ledger."""
    paragraphs: tuple[str, ...] = ()
    if spent is not None and is_claimed(run, spent):
        units = (run.record.get("data") or {}).get("units")
        paragraphs = (*meaning(spent, units), _choices(spent))
    return _Guarantee(
        claim=_claim(run, spent),
        warnings=_warnings(run, spent),
        definitions=definitions(spent.terms.unit) if spent and paragraphs else (),
        meaning=paragraphs,
        arithmetic=ARITHMETIC if paragraphs else (),
        facts=_facts(run, spent),
        assumptions=_assumptions(run),
    )


def spent_of(run: RunFiles) -> "Spent | None":
    """What the ledger says was spent, or None without a ledger or a delta."""
    delta = run.record.get("delta")
    if run.ledger is None or (delta is None and run.ledger.terms.budget is None):
        return None
    return run.ledger.spent(delta)


def is_claimed(run: RunFiles, spent: "Spent") -> bool:
    """Whether an epsilon holds for everything that was released."""
    return bool(
        spent.runs
        and math.isfinite(spent.epsilon)
        and _is_charged(run)
        and run.record.get("key_is_secret") is not False
        and not is_trial(run.record)
    )


def _is_charged(run: RunFiles) -> bool:
    """Whether the ledger has a charge for everything that the metrics say was released."""
    if not run.metrics:
        return True
    last = max((line.get("attempt") or 0, line["step"]) for line in run.metrics)
    return run.ledger is not None and last <= run.ledger.released(run.name)


def _claim(run: RunFiles, spent: "Spent | None") -> str:
    if is_trial(run.record):
        return NOT_FOR_RELEASE
    if spent is None:
        why = "its ledger is missing" if run.ledger is None else "no δ was fixed for it"
        return f"What this run spent is not known, because {why}. Nothing can be claimed."
    if not _is_charged(run):
        return (
            "The ledger has no charge for what this run released. It belongs to something else, it "
            "was restored from an older copy, or the run has another name there. Nothing can be "
            "claimed."
        )
    if not spent.runs:
        return "Nothing was charged so far, so nothing about the data was released."
    if math.isinf(spent.epsilon):
        return (
            "Nothing is protected: some of what was released had no noise, or too little for any ε "
            "at this δ."
        )
    if run.record.get("key_is_secret") is False:
        return "Nothing is protected: the noise of this run comes from a known seed."
    return (
        f"In real-number arithmetic, what was released is ({shown_epsilon(spent.epsilon)}, "
        f"{shown_delta(spent.delta)})-differentially private for {UNITS[spent.terms.unit]}, "
        f"{CHANGED[spent.terms.relation]}."
    )


def _choices(spent: "Spent") -> str:
    """Says when the budget is the guarantee, rather than what was spent."""
    budget = spent.terms.budget
    fixed = (
        f"the budget that was fixed beforehand: {_budget_in_words(budget)}"
        if budget
        else "a budget that was fixed beforehand, and there was none"
    )
    return (
        "This ε holds if what ran, and for how many steps, was chosen without looking at results. "
        f"Where results influenced that choice, the guarantee is {fixed}."
    )


def _budget_in_words(budget: "Budget") -> str:
    return f"ε = {shown_delta(budget.epsilon)} at δ = {shown_delta(budget.delta)}"


def _facts(run: RunFiles, spent: "Spent | None") -> tuple[tuple[str, str], ...]:
    record = run.record
    terms = run.ledger.terms if run.ledger else None
    unit = str(terms.unit if terms else record.get("unit") or "unit")
    relation = str(terms.relation if terms else record.get("relation") or "not recorded")
    changed = CHANGED.get(relation)
    related = f"one {unit} is {changed} ({relation})" if changed else relation
    rows = [("Unit of privacy", UNITS.get(unit, unit)), ("Neighbouring data sets", related)]
    if spent is not None:
        cost = f"ε = {shown_epsilon(spent.epsilon)} at δ = {shown_delta(spent.delta)}"
        rows.append(("Spent so far", cost))
    budget = terms.budget if terms else None
    rows.append(("Budget fixed beforehand", _budget_in_words(budget) if budget else "none"))
    rows.append(("Arithmetic", "real numbers: rounding is not covered"))
    rows.append(("Runs counted", _runs_in_words(run)))
    return (*rows, *tuning_rows(record, spent))


def _runs_in_words(run: RunFiles) -> str:
    if run.ledger is None:
        return "none: there is no ledger"
    names = run.ledger.runs
    if not names:
        return "none: nothing was charged so far"
    if names == (run.name,):
        return "this one, the only one in its ledger"
    more = f" and {len(names) - MAX_RUNS_LISTED} more" if len(names) > MAX_RUNS_LISTED else ""
    return f"all {len(names)} of the ledger, together: {', '.join(names[:MAX_RUNS_LISTED])}{more}"


def _assumptions(run: RunFiles) -> tuple[str, ...]:
    unit = str(run.record.get("unit") or "example")
    several = (
        "Each person's data is in one example. If it is in several, each of them is protected, but "
        "not all of them together."
        if unit == "example"
        else "Each person's data is under one user id."
    )
    return (
        "Arithmetic: sums and noise are real numbers. Floating point is not covered.",
        assumption(run.record),
        several,
        f"The number of {unit}s, the settings of the run, and the fact that it took place are "
        "public.",
        "Secrets: nobody else can read the private half of the run's folder. It holds the secrets "
        "that noise and batches come from, and raw records of the training data.",
        "The clock: only people who may see the data could watch the machine or the folder during "
        "training. How long steps take can depend on the data. The released files contain no "
        "times.",
        "Backups: nobody restored an earlier state of both the folder and the ledger and then "
        "continued training. Without an anchor on other storage bevel cannot detect that, and what "
        "was spent in between would be missing here.",
        "Evaluation: metrics were computed on data outside the training set, which the page cannot "
        "check. The guarantee does not cover that data.",
    )


def _warnings(run: RunFiles, spent: "Spent | None") -> tuple[str, ...]:
    warnings = []
    if run.record.get("key_is_secret") is False:
        warnings.append(
            "The noise of this run comes from a known seed, as used in tests. Anyone who knows the "
            "seed can remove the noise. The figures below would hold for secret noise only."
        )
    units = (run.record.get("data") or {}).get("units")
    if spent is not None and units and spent.delta >= 1 / units:
        warnings.append(
            f"δ = {shown_delta(spent.delta)} is not below one over the number of "
            f"{spent.terms.unit}s ({units}). Publishing a randomly chosen {spent.terms.unit} in "
            "full would satisfy such a guarantee."
        )
    if ended_by_callback(run):
        warnings.append(CALLBACK)
    return tuple(warnings)
