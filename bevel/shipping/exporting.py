"""`export`: writes the model of a run and its privacy statement, from what the run released."""

import dataclasses
import os
import shutil
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from bevel import precision
from bevel.accounting.ledger.header import LedgerHeader
from bevel.checks import shown
from bevel.errors import FixArgumentsError, RestoreLedgerError
from bevel.file_errors import explain_file_errors, file_error, is_full
from bevel.shipping.claim import (
    PROOF,
    claim_of,
    event_in_words,
    stated,
    status_of,
    warnings_of,
)
from bevel.shipping.file_digests import digests_of
from bevel.shipping.ledger_file import LedgerFile, read_ledger
from bevel.shipping.model_files import without_times, write_model
from bevel.shipping.names import natural_names
from bevel.shipping.statement import (
    FORMATS,
    KIND,
    NOT_COUNTED,
    NOTHING,
    STATEMENT,
    VERSION,
    StatedArithmetic,
    StatedLedger,
    StatedMechanism,
    StatedModel,
    StatedRun,
    Statement,
    is_plain_name,
    parse_statement,
)
from bevel.training.folder import LEDGER, NO_TIME
from bevel.training.loading import ReleasedArrays, released_arrays
from bevel.training.tuning_record import TRIAL, UNKNOWN

EXPORT = "export"  # the name of the folder, by default
PACKAGES = {
    "safetensors": ("bevel", "jax", "numpy", "dp-accounting", "safetensors"),
    "orbax": ("bevel", "jax", "numpy", "dp-accounting", "orbax-checkpoint"),
}
LONGEST_TUNING = 1000


def export(
    run_folder: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    format: str = "safetensors",
    *,
    step: int | None = None,
    delta: float | None = None,
    ledger: str | os.PathLike[str] | None = None,
    include_ledger: bool = True,
    tuned: str = NOT_COUNTED,
) -> Path:
    """Writes the model of a run, a privacy statement about it, and a copy of the ledger.

    The folder gets `model.safetensors` (or the Orbax checkpoint `model/`), `privacy.json` and
    `ledger.jsonl`. Everything comes from `released/` and the ledger, so nothing private can be in
    it: an export of a copy of `released/` alone has the same bytes. It contains no times.

    The stated epsilon is that of everything in the ledger, other runs included. A run that has not
    ended is exported with its last released checkpoint, and the statement says so.

    Args:
      run_folder: the folder of a run, or a copy of its `released/` folder.
      output: a folder that does not exist yet or is empty; by default `run_folder`/export.
      format: "safetensors" or "orbax". Parameters are named by their paths, such as "dense/0/w".
      step: a step of which there is a checkpoint; by default the newest.
      delta: by default that of the run.
      ledger: where the ledger is, if `released/` does not contain it.
      include_ledger: whether to copy the ledger. It contains the names of all runs.
      tuned: what was chosen by looking at results that the ledger does not count: "not counted",
        "nothing", or a description. By default what the run's record says (`RunOptions.tuning`).

    Returns:
      The folder.

    Raises:
      RestoreLedgerError: the ledger is missing or damaged, or lacks the charges of the model.
    """
    if format not in FORMATS:
        raise FixArgumentsError(
            f"format={shown(format)}: pass one of {', '.join(map(repr, FORMATS))}."
        )
    _check_tuned(tuned)
    run = released_arrays(run_folder, step)
    target = _empty_folder(Path(run_folder) / EXPORT if output is None else Path(output))
    # After the checkpoint: a run in progress charges first, so its ledger has these steps.
    charged = read_ledger(_ledger_path(run, ledger))
    _check_charged(run, charged)
    names = natural_names(run.shown, _recorded_paths(run))
    params = {name: run.shown[path] for path, name in names.items()}
    with explain_file_errors(target):
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        temporary.chmod(0o755)
        write_model(params, temporary, format)
        statement = _statement(run, charged, format, delta, tuned, params, digests_of(temporary))
        (temporary / STATEMENT).write_text(statement.text())
        parse_statement((temporary / STATEMENT).read_bytes())  # what is written can be read
        if include_ledger:
            (temporary / LEDGER).write_bytes(charged.data)
        without_times(temporary, NO_TIME)
        if target.exists():
            target.rmdir()
        temporary.rename(target)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError) or (isinstance(error, Exception) and is_full(error)):
            raise file_error(error, target) from error
        raise
    return target


def _statement(
    run: ReleasedArrays,
    charged: LedgerFile,
    model_format: str,
    delta: float | None,
    tuned: str,
    params: dict[str, np.ndarray],
    files: dict[str, str],
) -> Statement:
    record, terms = run.record, charged.contents.header
    secret = record.get("key_is_secret") is True
    epsilon, delta = _cost(charged, _delta(delta, record, terms))
    epsilon = epsilon if secret else None
    dtypes = {str(precision.accumulation_dtype(x.dtype)) for x in params.values()}
    units, ending = (record.get("data") or {}).get("units"), record.get("ending")
    settings = record.get("settings", {})
    return Statement(
        kind=KIND,
        version=VERSION,
        claim=claim_of(epsilon, delta, terms.unit, terms.relation, secret),
        unit=terms.unit,
        relation=terms.relation,
        epsilon=epsilon,
        delta=delta,
        budget=dataclasses.asdict(terms.budget) if terms.budget else None,
        mechanism=StatedMechanism(
            words=event_in_words(charged.event),
            event=charged.event,
            settings={name: x for name, x in settings.items() if name.startswith("plan.")},
        ),
        arithmetic=StatedArithmetic(PROOF, ", ".join(sorted(dtypes)), exact=False),
        key_is_secret=secret,
        tuning=_tuning(tuned, record),
        run=StatedRun(
            name=record["name"],
            plan=record["plan"]["fingerprint"],
            step=run.step,
            steps=record["steps"],
            attempt=run.attempt,
            ending=ending,
            status=status_of(run.step, record["steps"], ending),
        ),
        ledger=StatedLedger(
            name=LEDGER,
            head=charged.contents.hashes.head,
            lines=len(charged.lines),
            lines_of_run=charged.lines_of(record["name"]),
            sha256=charged.sha256,
        ),
        model=StatedModel(
            format=model_format,
            parameters="average" if run.average else "last step",
            frozen=_frozen(run),
            files=files,
        ),
        versions={"trained": record.get("versions", {}), "exported": _versions(model_format)},
        warnings=warnings_of(delta, terms.unit, units, secret, ending),
    )


def _tuning(tuned: str, record: dict[str, Any]) -> str:
    """What was tuned and not counted, by default from the record of the run."""
    way = (record.get("tuning") or {}).get("way", UNKNOWN)
    if way == TRIAL:
        raise FixArgumentsError(
            "the run is one trial of a private selection, and nothing of a trial may be released: "
            "export the folder of the search, which has its best trial."
        )
    return NOTHING if tuned == NOT_COUNTED and way != UNKNOWN else tuned


def _cost(charged: LedgerFile, delta: float | None) -> tuple[float | None, float | None]:
    """Epsilon and delta as they are stated. Without noise, no delta is needed."""
    if delta is not None:
        return stated(charged.epsilon(delta)), delta
    if stated(charged.epsilon(0.5)) is None:  # the same at every delta
        return None, None
    raise FixArgumentsError(
        "neither the run nor its ledger has a delta, and epsilon holds at a delta only: pass "
        "delta=..., well below one over the number of examples or users."
    )


def _delta(delta: float | None, record: dict[str, Any], terms: LedgerHeader) -> float | None:
    if delta is not None:
        from bevel.accounting.arguments import check_budget

        check_budget(delta=delta)
        return float(delta)
    recorded = record.get("delta")
    if recorded is None and terms.budget is not None:
        return terms.budget.delta
    return recorded


def _ledger_path(run: ReleasedArrays, given: str | os.PathLike[str] | None) -> Path:
    path = run.released / (run.record.get("ledger") or LEDGER) if given is None else Path(given)
    if not path.is_file():
        raise RestoreLedgerError(
            f"there is no ledger at {path}, so what the run spent is unknown. Pass the file that "
            "the run was charged in: ledger=..."
        )
    return path


def _check_charged(run: ReleasedArrays, charged: LedgerFile) -> None:
    """Raises unless the ledger has the charges of the model."""
    name, terms = run.record["name"], charged.contents.header
    totals = charged.contents.totals.runs.get(name)
    known = (0, 0) if totals is None else (totals.last.attempt, totals.released_until)
    charged_until = 0 if totals is None else totals.charged_until
    if run.step and (known < (run.attempt, run.step) or charged_until < run.step):
        raise RestoreLedgerError(
            f"run {name!r} has released step {run.step} of attempt {run.attempt}, but the ledger "
            f"{charged.path} has step {known[1]} of attempt {known[0]}: it belongs to another run, "
            "or is an older copy. Pass the ledger of this run."
        )
    same_plan = totals is None or totals.last.plan == run.record["plan"]["fingerprint"]
    same_terms = (terms.unit, terms.relation) == (run.record["unit"], run.record["relation"])
    if not (same_plan and same_terms):
        raise RestoreLedgerError(
            f"the ledger {charged.path} has a run {name!r} with another plan, unit or relation: it "
            "belongs to something else. Pass the ledger of this run."
        )


def _recorded_paths(run: ReleasedArrays) -> list[str]:
    rows = (row["path"] for row in run.record.get("arrays") or ())
    return [path.partition("/")[2] for path in rows if path.split("/")[0] == "params"]


def _frozen(run: ReleasedArrays) -> list[str]:
    """The recorded parameters that are in no checkpoint, because they are not trained."""
    recorded = _recorded_paths(run)
    shipped = set(natural_names(run.shown, recorded).values())
    return [name for name in natural_names(recorded, recorded).values() if name not in shipped]


def _versions(model_format: str) -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in PACKAGES[model_format]:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def _check_tuned(tuned: str) -> None:
    valid = isinstance(tuned, str) and 0 < len(tuned) <= LONGEST_TUNING and tuned.isprintable()
    if not valid:
        raise FixArgumentsError(
            f"tuned={shown(tuned)}: pass 'nothing', 'not counted', or one line that says what was "
            f"chosen by looking at results, of at most {LONGEST_TUNING} characters."
        )


def _empty_folder(path: Path) -> Path:
    """Raises unless `path` can become a new folder."""
    target = path.absolute()
    if not is_plain_name(target.name) or target.is_symlink():
        raise FixArgumentsError(f"output={str(path)!r}: pass the name of a new folder.")
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise FixArgumentsError(
            f"{path} exists already, and an export never replaces anything. Pass another output, "
            "or remove it first."
        )
    with explain_file_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    return target
