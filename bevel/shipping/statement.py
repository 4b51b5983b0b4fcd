"""The privacy statement of an exported model: its fields, and how it is written and read."""

import dataclasses
import hashlib
import json
import math
import os
import re
import types
import typing
from pathlib import Path, PurePosixPath
from typing import Any

from bevel.accounting.ledger.event_json import event_to_json
from bevel.accounting.ledger.hash_chain import canonical
from bevel.accounting.ledger.header import RELATIONS, UNITS
from bevel.checks import in_one_line
from bevel.errors import BevelError, FixArgumentsError

KIND, VERSION = "bevel privacy statement", 1
STATEMENT = "privacy.json"
NOT_COUNTED, NOTHING = "not counted", "nothing"  # two values of `tuning`
FORMATS = ("safetensors", "orbax")
SHA256 = re.compile("[0-9a-f]{64}")


@dataclasses.dataclass(frozen=True)
class StatedMechanism:
    """What was released, in words, as the event that the ledger adds up to, and as settings.

    The settings are those of the plan, such as its sampler and clip norm. They are not verified.
    """

    words: str
    event: dict[str, Any]
    settings: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class StatedArithmetic:
    """The arithmetic of the proof, and that of the computer.

    `exact` says whether noise was drawn and added without rounding (discrete noise on a grid).
    """

    proof: str
    sums_and_noise: str
    exact: bool


@dataclasses.dataclass(frozen=True)
class StatedRun:
    """The run that trained the model: `step` of `steps` steps, in an attempt of the ledger."""

    name: str
    plan: str
    step: int
    steps: int
    attempt: int
    ending: str | None
    status: str


@dataclasses.dataclass(frozen=True)
class StatedLedger:
    """The ledger when the model was exported: the hash of its last line, and its length.

    `lines_of_run` are ranges of lines, counted from 1, that belong to the run of the model. All
    other charges are part of epsilon too. `sha256` is that of all `lines` lines.
    """

    name: str
    head: str
    lines: int
    lines_of_run: list[list[int]]
    sha256: str


@dataclasses.dataclass(frozen=True)
class StatedModel:
    """The exported files by their path beside the statement, with their SHA-256.

    `parameters` is "average" or "last step". `frozen` are names that the run did not train, which
    are therefore not in the files.
    """

    format: str
    parameters: str
    frozen: list[str]
    files: dict[str, str]


@dataclasses.dataclass(frozen=True)
class Statement:
    """What is promised about a model, in the form of privacy.json.

    Attributes:
      kind, version: of the format.
      claim: the promise as a sentence, which follows from the other fields.
      unit, relation: the unit of privacy and the neighbouring relation of the ledger.
      epsilon: for everything in the ledger up to its stated head. None if nothing is promised.
      delta: None only if nothing is promised.
      budget: what was fixed beforehand, `{"epsilon": ..., "delta": ...}`, or None.
      mechanism, arithmetic, run, ledger, model: see their classes.
      key_is_secret: False if the noise comes from a known seed. Then nothing is promised.
      tuning: what was chosen by looking at results and is not in the ledger: "not counted",
        "nothing", or the owner's words.
      versions: of packages by "trained" and "exported".
      warnings: reasons to be careful, in sentences.
      digest: the SHA-256 of all other fields. It reveals careless edits. Anyone who changes a
        statement on purpose can also compute its new digest.
    """

    kind: str
    version: int
    claim: str
    unit: str
    relation: str
    epsilon: float | None
    delta: float | None
    budget: dict[str, float] | None
    mechanism: StatedMechanism
    arithmetic: StatedArithmetic
    key_is_secret: bool
    tuning: str
    run: StatedRun
    ledger: StatedLedger
    model: StatedModel
    versions: dict[str, dict[str, str | None]]
    warnings: list[str]
    digest: str = ""

    def text(self) -> str:
        """Returns the content of privacy.json, with its digest."""
        fields = dataclasses.asdict(self) | {"digest": self.computed_digest()}
        return json.dumps(fields, indent=2, allow_nan=False) + "\n"

    def computed_digest(self) -> str:
        fields = dataclasses.asdict(self)
        del fields["digest"]
        return hashlib.sha256(canonical(fields)).hexdigest()


def read_statement(path: str | os.PathLike[str]) -> Statement:
    """Reads privacy.json, or the statement in the folder of an export, and checks every field.

    It does not verify that the statement is true: see `verify`.

    Raises:
      FixArgumentsError: there is no such file, or a field is missing, unknown or invalid.
    """
    file = Path(path)
    file = file / STATEMENT if file.is_dir() else file
    try:
        data = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise FixArgumentsError(
            f"there is no privacy statement at {file}. Pass the {STATEMENT} of an export."
        ) from None
    try:
        return parse_statement(data)
    except BevelError as error:
        raise FixArgumentsError(f"{file} is not a valid privacy statement: {error}") from error


def parse_statement(data: bytes) -> Statement:
    """Returns the statement in the bytes of a file. Raises if a field is not as it has to be."""
    try:
        fields = json.loads(
            data.decode(),
            object_pairs_hook=_without_duplicates,
            parse_constant=_refused,
            parse_float=_finite,
        )
    except (ValueError, RecursionError) as error:
        raise FixArgumentsError(f"it is not JSON ({in_one_line(error)}).") from error
    if not isinstance(fields, dict) or fields.get("kind") != KIND:
        raise FixArgumentsError(f"it has no field kind with the value {KIND!r}.")
    if fields.get("version") != VERSION or type(fields["version"]) is not int:
        raise FixArgumentsError(
            f"it has version {_shown(fields.get('version'))}, but this bevel reads version "
            f"{VERSION}. Read it with the version of bevel that wrote it."
        )
    statement: Statement = _typed(Statement, fields, "")
    _check_values(statement)
    return statement


def _check_values(statement: Statement) -> None:
    """Raises unless numbers are in their range and names are among the known ones."""
    run, ledger, model = statement.run, statement.ledger, statement.model
    epsilon, delta, budget = statement.epsilon, statement.delta, statement.budget
    event_to_json(statement.mechanism.event)
    for valid, name, value in (
        (statement.unit in UNITS, "unit", statement.unit),
        (statement.relation in RELATIONS, "relation", statement.relation),
        (epsilon is None or epsilon >= 0, "epsilon", epsilon),
        (delta is None or 0 < delta < 1, "delta", delta),
        (epsilon is None or delta is not None, "delta", delta),
        (epsilon is None or statement.key_is_secret, "key_is_secret", False),
        (budget is None or budget.keys() == {"epsilon", "delta"}, "budget", budget),
        (0 <= run.step <= run.steps, "run.step", run.step),
        (run.attempt >= 0, "run.attempt", run.attempt),
        (ledger.lines >= 1, "ledger.lines", ledger.lines),
        (is_plain_name(ledger.name), "ledger.name", ledger.name),
        (_are_ranges(ledger.lines_of_run, ledger.lines), "ledger.lines_of_run", "..."),
        (model.format in FORMATS, "model.format", model.format),
        (bool(model.files), "model.files", {}),
        (all(map(_is_inside, model.files)), "model.files", list(model.files)),
        (statement.versions.keys() == {"trained", "exported"}, "versions", statement.versions),
        *((SHA256.fullmatch(d), "digest", d) for d in (ledger.head, ledger.sha256)),
        *((SHA256.fullmatch(d), "model.files", d) for d in model.files.values()),
    ):
        if not valid:
            raise FixArgumentsError(f"its field {name} has the invalid value {_shown(value)}.")


def is_plain_name(name: str) -> bool:
    """Whether a name can be that of a file beside the statement."""
    return _is_inside(name) and "/" not in name


def _is_inside(path: str) -> bool:
    """Whether a path stays in the folder that it is relative to."""
    parts = PurePosixPath(path).parts
    unusual = "\\" in path or "\0" in path or path != "/".join(parts)
    return bool(parts) and not unusual and ".." not in parts and parts[0] != "/"


def _are_ranges(ranges: list[list[int]], lines: int) -> bool:
    flat = [number for pair in ranges for number in pair]
    pairs = all(len(pair) == 2 and pair[0] <= pair[1] for pair in ranges)
    return pairs and flat == sorted(flat) and all(1 <= number <= lines for number in flat)


# Types: a statement may come from anyone, so nothing about its fields is assumed.


def _typed(kind: Any, value: Any, where: str) -> Any:
    """Returns `value` if it has the annotated type `kind`, with dicts made into dataclasses."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin is types.UnionType:
        if value is None and type(None) in inner:
            return None
        return _typed(inner[0], value, where)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        _expect(isinstance(value, dict), where, "an object", value)
        missing, unknown = sorted(hints.keys() - value.keys()), sorted(value.keys() - hints.keys())
        if missing or unknown:
            found = ", ".join(
                [f"lacks {_at(where, n)}" for n in missing[:4]]
                + [f"has the unknown {_shown(_at(where, n))}" for n in unknown[:4]]
            )
            raise FixArgumentsError(f"it {found}.")
        fields = {n: _typed(hints[n], value[n], _at(where, n)) for n in hints}
        return typing.cast(Any, kind)(**fields)
    if origin is list:
        _expect(isinstance(value, list), where, "a list", value)
        return [_typed(inner[0], item, where) for item in value]
    if origin is dict:
        _expect(isinstance(value, dict), where, "an object", value)
        return {name: _typed(inner[1], item, _at(where, name)) for name, item in value.items()}
    names = {
        str: "a string",
        int: "an integer",
        float: "a finite number with a point",
        bool: "a bool",
    }
    # type() and not isinstance(): True is an instance of int.
    is_right = type(value) is kind and not (kind is float and not math.isfinite(value))
    _expect(is_right, where, names[kind], value)
    return value


def _expect(condition: bool, where: str, expected: str, value: Any) -> None:
    if not condition:
        raise FixArgumentsError(f"its field {_shown(where)} is {_shown(value)}, not {expected}.")


def _at(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _shown(value: Any) -> str:
    """A value of unknown origin for a message: short, in one line, control characters escaped."""
    return in_one_line(repr(value), 80)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuses a name that occurs twice: readers would disagree on which one counts."""
    names = [name for name, _ in pairs]
    if len(names) != len(set(names)):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {twice!r} occurs twice")
    return dict(pairs)


def _refused(text: str) -> float:
    raise ValueError(f"{text} is not a finite number")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refused(text)
