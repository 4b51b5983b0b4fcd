"""`verify`: checks a privacy statement against a ledger, with nothing but the two files."""

import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from bevel.accounting.ledger.hash_chain import canonical
from bevel.checks import in_one_line
from bevel.errors import BevelError, FixArgumentsError
from bevel.shipping.claim import PROOF, claim_of, event_in_words, status_of
from bevel.shipping.file_digests import ORBAX, SAFETENSORS, difference, digests_of
from bevel.shipping.ledger_file import LedgerFile, read_ledger
from bevel.shipping.statement import NOTHING, STATEMENT, Statement, parse_statement

# Epsilons that differ by less come from the same events: machines round differently.
ROUNDING = 1e-6
# Their accounting may give another epsilon for the same events.
ACCOUNTING = ("bevel", "dp-accounting")


@dataclasses.dataclass(frozen=True)
class StatementCheck:
    """One thing that was checked, and what was found."""

    name: str
    passed: bool
    said: str

    def __post_init__(self) -> None:
        # It may quote a ledger or a statement of unknown origin.
        said = "".join(c if c.isprintable() else repr(c)[1:-1] for c in self.said)
        object.__setattr__(self, "said", said)


@dataclasses.dataclass(frozen=True)
class Verification:
    """The result of `verify`. `print(result)` explains it.

    Attributes:
      checks: what was checked. Later checks are left out if an earlier one makes them meaningless.
      not_checked: what no file can show, or was not passed.
      statement: None if it could not be read.
      epsilon: recomputed from the ledger up to the stated line; None if unknown or infinite.
      epsilon_now: that of the whole ledger, which may have grown since the export.
    """

    checks: tuple[StatementCheck, ...]
    not_checked: tuple[str, ...] = ()
    statement: Statement | None = None
    epsilon: float | None = None
    epsilon_now: float | None = None

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """Returns the result in the form of JSON."""
        stated = self.statement
        return {
            "passed": self.passed,
            "checks": [dataclasses.asdict(check) for check in self.checks],
            "not_checked": list(self.not_checked),
            "stated_epsilon": stated and stated.epsilon,
            "delta": stated and stated.delta,
            "epsilon": self.epsilon,
            "epsilon_now": self.epsilon_now,
        }

    def __str__(self) -> str:
        lines = [
            f"{'passed' if check.passed else 'FAILED'}  {check.name}: {check.said}"
            for check in self.checks
        ]
        if self.not_checked:
            lines += ["Not checked:", *(f"  - {text}" for text in self.not_checked)]
        if not self.passed:
            return "\n".join([*lines, "verify FAILED: do not rely on this statement."])
        claim = self.statement.claim if self.statement else ""
        return "\n".join([*lines, f"verify PASSED. {claim}"])


def verify(
    statement: str | os.PathLike[str],
    ledger: str | os.PathLike[str] | None = None,
    model: str | os.PathLike[str] | None = None,
) -> Verification:
    """Checks a privacy statement against a ledger, and recomputes its epsilon with dp-accounting.

    It needs nothing but the files: no run folder, no data and no keys, and neither Orbax nor
    safetensors.

    Args:
      statement: privacy.json, or the folder of an export, whose model is then checked too.
      ledger: by default the ledger.jsonl beside the statement. To see later charges too, pass the
        ledger that the owner uses now.
      model: the exported model.safetensors or model/, to check that it is the stated one.

    Returns:
      A `Verification`, whose `passed` is False if anything is not as stated.

    Raises:
      FixArgumentsError: a file that was named does not exist.
    """
    file = Path(statement)
    if file.is_dir():
        model = file if model is None and _has_model(file) else model
        file = file / STATEMENT
    if not file.is_file():
        raise FixArgumentsError(
            f"there is no privacy statement at {file}: pass what `bevel export RUN` has written, "
            f"RUN/export or its {STATEMENT}."
        )
    if model is not None and not Path(model).exists():
        raise FixArgumentsError(f"there is no model at {model}: check the path.")
    try:
        stated = parse_statement(file.read_bytes())
    except BevelError as error:
        return Verification((StatementCheck("statement", False, str(error)),))
    beside = ledger is None
    path = Path(file.parent / stated.ledger.name if ledger is None else ledger)
    if not path.is_file():
        raise FixArgumentsError(f"there is no ledger at {path}: pass the ledger of the statement.")
    result = _verified(stated, path, None if model is None else Path(model))
    return dataclasses.replace(
        result, not_checked=tuple(_not_checked(stated, model is not None, beside))
    )


def _verified(stated: Statement, path: Path, model: Path | None) -> Verification:
    checks = [_check("statement", lambda: _of_digest(stated))]
    if model is not None:
        checks.append(_check("model", lambda: _of_model(stated, model)))
    try:
        whole = read_ledger(path)
    except BevelError as error:
        return Verification((*checks, StatementCheck("ledger", False, str(error))), (), stated)
    checks.append(_check("ledger", lambda: _of_lines(stated, whole)))
    if not checks[-1].passed:
        return Verification(tuple(checks), (), stated)
    then = whole.up_to(stated.ledger.lines)
    costs: dict[str, float] = {}
    checks += [
        _check("terms", lambda: _of_terms(stated, then)),
        _check("run", lambda: _of_run(stated, then)),
        _check("event", lambda: _of_event(stated, then)),
        _check("epsilon", lambda: _of_epsilon(stated, then, costs)),
        _check("words", lambda: _of_words(stated)),
    ]
    if len(whole.lines) > len(then.lines):
        checks.append(_check("later charges", lambda: _of_later(stated, then, whole, costs)))
    at_head, now = (costs.get(name, math.inf) for name in ("then", "now"))
    now = now if len(whole.lines) > len(then.lines) else at_head
    return Verification(
        checks=tuple(checks),
        statement=stated,
        epsilon=at_head if math.isfinite(at_head) else None,
        epsilon_now=now if math.isfinite(now) else None,
    )


class _Mismatch(Exception):
    """Something is not as stated. The message says what."""


def _check(name: str, run: Callable[[], str]) -> StatementCheck:
    try:
        return StatementCheck(name, True, run())
    except _Mismatch as problem:
        return StatementCheck(name, False, str(problem))


def _of_digest(stated: Statement) -> str:
    if stated.computed_digest() != stated.digest:
        raise _Mismatch("its fields do not match its digest: it was changed after the export.")
    return "all fields are there, and match the digest of the statement."


def _of_model(stated: Statement, model: Path) -> str:
    changed = difference(stated.model.files, digests_of(model))
    if changed:
        raise _Mismatch(f"it is not the model that was exported: {changed}.")
    return f"the SHA-256 of {len(stated.model.files)} file(s) is as stated."


def _of_lines(stated: Statement, whole: LedgerFile) -> str:
    ledger, hashes = stated.ledger, whole.contents.hashes
    if len(hashes) < ledger.lines:
        raise _Mismatch(
            f"it has {len(hashes)} of the {ledger.lines} lines that the statement is about: its "
            "last lines were removed, or it is another ledger."
        )
    if hashes[ledger.lines - 1] != ledger.head:
        raise _Mismatch(
            f"its line {ledger.lines} is not the stated one: it is another ledger, or its lines "
            "were written anew."
        )
    then = whole.up_to(ledger.lines)
    if then.sha256 != ledger.sha256:
        raise _Mismatch("its SHA-256 is not the stated one.")
    if then.lines_of(stated.run.name) != ledger.lines_of_run:
        raise _Mismatch("other lines than the stated ones belong to the run of the model.")
    return f"its chain of hashes is intact, and its line {ledger.lines} has the stated hash."


def _of_terms(stated: Statement, then: LedgerFile) -> str:
    header = then.contents.header
    budget = header.budget and {"epsilon": header.budget.epsilon, "delta": header.budget.delta}
    for name, of_ledger, of_statement in (
        ("unit", header.unit, stated.unit),
        ("relation", header.relation, stated.relation),
        ("budget", budget, stated.budget),
    ):
        if of_ledger != of_statement:
            raise _Mismatch(f"the {name} of the ledger is {of_ledger}, not {of_statement}.")
    return f"the ledger is about one {stated.unit} under {stated.relation}, as stated."


def _of_run(stated: Statement, then: LedgerFile) -> str:
    run, totals = stated.run, then.contents.totals.runs.get(stated.run.name)
    name = in_one_line(repr(run.name), 60)
    if totals is None:
        if run.step == 0 and run.attempt == 0:
            return f"run {name} has charged nothing, and the model is that of step 0."
        raise _Mismatch(f"the ledger has no run {name}, so the model was not charged.")
    if totals.last.plan != run.plan:
        raise _Mismatch(f"run {name} has another plan in the ledger.")
    released = (totals.last.attempt, totals.released_until)
    if (run.attempt, run.step) > released or run.step > totals.charged_until:
        raise _Mismatch(
            f"the ledger says that run {name} has released step {released[1]} of attempt "
            f"{released[0]}, but the model is that of step {run.step} of attempt {run.attempt}."
        )
    return f"the ledger has charged what run {name} released up to step {run.step}."


def _of_event(stated: Statement, then: LedgerFile) -> str:
    if canonical(stated.mechanism.event) != canonical(then.event):
        raise _Mismatch("the stated event is not what the charges of the ledger add up to.")
    return f"the charges of the ledger add up to the stated event: {event_in_words(then.event)}."


def _of_epsilon(stated: Statement, then: LedgerFile, costs: dict[str, float]) -> str:
    if stated.epsilon is None or stated.delta is None:
        return "nothing is promised, so there is no epsilon to check."
    costs["then"] = cost = _epsilon(then, stated.delta)
    recomputed = f"recomputed from the ledger, it is {cost!r} at delta {stated.delta!r}"
    if math.isclose(cost, stated.epsilon, rel_tol=ROUNDING, abs_tol=ROUNDING / 1000):
        return f"{recomputed}, as stated."
    if cost > stated.epsilon:
        raise _Mismatch(f"{recomputed}, which is more than the stated {stated.epsilon!r}.")
    others = [name for name in ACCOUNTING if _version(name) != _stated_version(stated, name)]
    if not others:
        raise _Mismatch(
            f"{recomputed}, not {stated.epsilon!r}. The statement promises less than it could, but "
            "it was not written from this ledger."
        )
    return (
        f"{recomputed}; the stated {stated.epsilon!r} promises less, and was computed by another "
        f"version of {' and '.join(others)}."
    )


def _of_words(stated: Statement) -> str:
    run = stated.run
    for name, words, expected in (
        (
            "claim",
            stated.claim,
            claim_of(
                stated.epsilon, stated.delta, stated.unit, stated.relation, stated.key_is_secret
            ),
        ),
        ("mechanism.words", stated.mechanism.words, event_in_words(stated.mechanism.event)),
        ("run.status", run.status, status_of(run.step, run.steps, run.ending)),
        ("arithmetic.proof", stated.arithmetic.proof, PROOF),
    ):
        if words != expected:
            raise _Mismatch(f"its {name} says something else than its other fields.")
    return "its sentences say what its fields say."


def _of_later(
    stated: Statement, then: LedgerFile, whole: LedgerFile, costs: dict[str, float]
) -> str:
    added = len(whole.lines) - len(then.lines)
    since = f"the ledger has grown by {added} line(s) since the export"
    if stated.epsilon is None or stated.delta is None:
        return f"{since}."
    costs["now"] = now = _epsilon(whole, stated.delta)
    if now <= stated.epsilon:
        return f"{since}, and its epsilon is still {now!r}."
    return (
        f"{since}. The statement was true at its line {len(then.lines)}; everything that was "
        f"released until now costs epsilon {now!r} at delta {stated.delta!r}."
    )


def _epsilon(ledger: LedgerFile, delta: float) -> float:
    try:
        return ledger.epsilon(delta)
    except ModuleNotFoundError:
        raise
    except Exception as error:
        raise _Mismatch(f"it cannot be recomputed ({in_one_line(error)}).") from error


def _not_checked(stated: Statement, has_model: bool, beside: bool) -> Iterator[str]:
    yield (
        "That the training ran as the ledger says. A ledger records what a program charged; "
        "whoever writes it could write anything."
    )
    yield "That there is no other ledger for the same data, and that no release went uncharged."
    if beside:
        yield (
            "That the ledger beside the statement is the newest. To see later charges, verify "
            "against the ledger that the owner uses now."
        )
    if not has_model:
        yield f"The model: pass it to compare its files ({_model_name(stated)}) with the statement."
    yield "That the model is what run and step say: only its owner can recompute it."
    if stated.epsilon is not None:
        yield "That the noise key was and stays secret."
        yield (
            "Rounding: the proof is for real numbers, and the computer used "
            f"{in_one_line(repr(stated.arithmetic.sums_and_noise), 40)}."
        )
        if stated.tuning != NOTHING:
            yield f"Tuning outside of the ledger: {in_one_line(repr(stated.tuning), 200)}."
    yield "The settings, versions and warnings in the statement, which the ledger does not have."


def _model_name(stated: Statement) -> str:
    return SAFETENSORS if stated.model.format == "safetensors" else f"{ORBAX}/"


def _has_model(folder: Path) -> bool:
    return (folder / SAFETENSORS).exists() or (folder / ORBAX).exists()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _stated_version(stated: Statement, package: str) -> str | None:
    return stated.versions["exported"].get(package)


def as_json(result: Verification) -> str:
    """The result as text that is safe in terminals and in HTML: other characters are escaped."""
    text = json.dumps(result.to_dict(), indent=2, allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
