"""The identity of a run: recorded when the run starts, compared whenever it resumes.

| what changed                                                     | what happens               |
| ---------------------------------------------------------------- | -------------------------- |
| data, plan, initial or frozen parameters, model state,           | refused: it is another run |
| structure of the state                                           |                            |
| optimizer (learning rate), loss, ema_decay, named settings       | refused, unless listed in  |
|                                                                  | `RunOptions(accept=)`      |
| mesh, device, processes, versions, path of the data              | allowed, with a note       |

Values with names (fields of the plan, keys of a config, `RunOptions(settings=...)`) are compared
one by one, and error messages show the old and the new value. Everything else is compared by
digests. The record is private, because anyone can test a guess of the data against a digest of the
data, or of a program that contains some of it.
"""

import dataclasses
import enum
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bevel.batch_selection.randomness import DRAW_VERSION
from bevel.checks import shown
from bevel.errors import FixArgumentsError, RestoreCheckpointError
from bevel.execution_plan import DPExecutionPlan
from bevel.execution_plan.fingerprint import recorded_fields
from bevel.file_errors import explain_file_errors
from bevel.training.folder import IDENTITY, write_atomically

# What `accept` may list, in addition to the names in `settings`.
ACCEPTABLE = ("optimizer", "loss", "ema_decay")
# These cannot change within a run. Compared with the first part of a dotted name.
FIXED = ("data", "plan", "structure", "initial parameters", "frozen parameters", "model state")
# Settings that may change freely.
NOTED = ("mesh", "data.source")
# The key under which `named_values` stores the class of a dataclass.
KIND = ""
# Longer sequences are not printed in full.
MAX_SHOWN = 8


@dataclasses.dataclass(frozen=True)
class Identity:
    """The identity of a run.

    Attributes:
      settings: values by dotted names. Public.
      digests: hashes of everything that has no name. Private.
      surroundings: mesh, device, versions. Public.
    """

    settings: dict[str, Any]
    digests: dict[str, str]
    surroundings: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Change:
    """A difference between two identities. A digest has neither `before` nor `now`."""

    name: str
    before: Any = None
    now: Any = None
    of_surroundings: bool = False

    def __str__(self) -> str:
        if self.before is None and self.now is None:
            return DIGEST_MESSAGES.get(self.name, f"the {self.name} differ")
        return f"{self.name} {_format(self.before)} -> {_format(self.now)}"

    @property
    def kind(self) -> str:
        """'fixed', 'noted' or 'acceptable'."""
        prefix = self.name.split(".")[0]
        if self.of_surroundings or self.name in NOTED or prefix in NOTED:
            return "noted"
        return "fixed" if prefix in FIXED else "acceptable"

    def is_accepted(self, accept: Sequence[str]) -> bool:
        return any(self.name == name or self.name.startswith(f"{name}.") for name in accept)


DIGEST_MESSAGES = {
    "optimizer": "the optimizer's program differs",
    "structure": "the structure of trained parameters, optimizer state or average differs",
    "structure.params": "the names, shapes or dtypes of the trained parameters differ",
    "structure.optimizer": "it is another optimizer, whose state has another structure",
    "loss": "the loss's program differs",
    "loss.derivative": "a custom derivative rule of the loss differs",
    "plan": "the plan differs",
    "model state": "the model_state differs",
}
# The first change of a pair follows from the second, so it is not reported.
CAUSES = (
    ("loss.derivative", "loss"),
    ("structure", "structure.params"),
    ("structure", "structure.optimizer"),
    ("structure.optimizer", "structure.params"),
    ("optimizer", "structure.optimizer"),
    ("optimizer", "structure.params"),
)


def changes(before: Identity, now: Identity) -> list[Change]:
    """Returns all differences. A digest is left out if a named value explains its change."""
    named = _changed_values(before.settings, now.settings)
    explained = {change.name.split(".")[0] for change in named if change.kind != "noted"}
    unnamed = [
        Change(name)
        for name in now.digests | before.digests
        if name not in explained and _differ(before.digests.get(name), now.digests.get(name), name)
    ]
    found = {change.name for change in unnamed}
    general = {name for name, cause in CAUSES if name in found and cause in found}
    unnamed = [change for change in unnamed if change.name not in general]
    noted = _changed_values(flatten(before.surroundings), flatten(now.surroundings))
    return named + unnamed + [dataclasses.replace(c, of_surroundings=True) for c in noted]


def _differ(before: str | None, now: str | None, name: str) -> bool:
    """Whether two digests differ. An empty one is unknown, as are those of older versions."""
    if name == "model state":  # only runs that have one have a digest
        return before != now
    return bool(before and now and before != now)


def _changed_values(before: dict[str, Any], now: dict[str, Any]) -> list[Change]:
    """Compares values as JSON, where NaN equals NaN."""
    found = [Change(k, before.get(k), now.get(k)) for k in sorted(before.keys() | now.keys())]
    text = functools.partial(json.dumps, sort_keys=True)
    return [change for change in found if text(change.before) != text(change.now)]


def check_resumable(
    before: Identity, now: Identity, accept: Sequence[str], folder: str
) -> list[Change]:
    """Returns the changes since the run was started. Raises if it cannot resume with them."""
    found = changes(before, now)
    fixed = {change.name for change in found if change.kind == "fixed"}
    if "plan.draw" in fixed:
        started = before.settings.get("plan.draw", 1)  # the first version was not recorded
        raise RestoreCheckpointError(
            f"{folder} was started with version {started} of the draw of batches, and this release "
            f"of bevel draws version {DRAW_VERSION}: its steps would not be those that were "
            "accounted for. Finish the run with the release that started it, or start a new run "
            "in another folder, with the same ledger."
        )
    if fixed == {"structure.optimizer"}:
        raise RestoreCheckpointError(
            f"{folder} was started with another optimizer, whose state has another structure, so "
            "the run cannot go on with this one, even if you accept it. Use the optimizer that it "
            "was started with, or start a new run in another folder, with the same ledger."
        )
    if any(change.kind == "fixed" for change in found):
        raise _another_run(folder, [change for change in found if change.kind != "noted"])
    refused = [c for c in found if c.kind == "acceptable" and not c.is_accepted(accept)]
    if refused:
        names = sorted({change.name for change in refused})
        versions = [str(c) for c in found if c.name.startswith("versions.jax")]
        maybe = f" (or {versions[0]} traces the same program differently)" if versions else ""
        raise RestoreCheckpointError(
            f"{folder} was started differently: {'; '.join(map(str, refused))}{maybe}. This does "
            "not affect epsilon, but it affects the model. Undo the change, or accept it with "
            f"RunOptions(accept={shown(names)}), on the command line --accept {' '.join(names)}."
        )
    return found


def check_fixed_settings(
    folder: Path, private: Path, settings: Mapping[str, Any], plan: DPExecutionPlan
) -> None:
    """Raises if a setting or the plan differs from those of the run in a folder, and may not."""
    before = read_identity(private)
    if before is None:
        return
    now = flatten(named_values(settings)) | plan_settings(plan)
    now = {name: value for name, value in now.items() if name in before.settings}
    found = _changed_values({name: before.settings[name] for name in now}, now)
    fixed = [change for change in found if change.kind == "fixed"]
    if not fixed:
        return
    why = ""
    if settings and all(change.name in plan_settings(plan) for change in fixed):
        why = " (with the same settings, but with more or fewer records or users)"
    raise _another_run(str(folder), fixed, why)


def _another_run(folder: str, differing: Sequence[Change], why: str = "") -> RestoreCheckpointError:
    return RestoreCheckpointError(
        f"{folder} contains another run{why}: {'; '.join(map(str, differing))}. Its epsilon holds "
        "only for what it was started with. Restore that, or start a new run in another folder, "
        "with the same ledger if it uses the same data."
    )


def check_accept(accept: Sequence[str]) -> None:
    """Raises unless `accept` is a list of names that may change within a run."""
    is_list = isinstance(accept, Sequence) and not isinstance(accept, str | bytes)
    if not is_list or not all(isinstance(name, str) for name in accept):
        raise FixArgumentsError(
            f"accept={shown(accept)}: pass a list of names, such as ['optimizer']."
        )
    for name in accept:
        if Change(name).kind == "fixed":
            raise FixArgumentsError(
                f"accept={list(accept)!r}: {name!r} cannot change within a run, because its "
                "epsilon holds only for what it was started with. You can accept "
                f"{', '.join(ACCEPTABLE)} and names in `settings`."
            )


def read_identity(folder: Path) -> Identity | None:
    """Reads the identity that a run was started with. None if there is no such file."""
    path = folder / IDENTITY
    try:
        with explain_file_errors(path, but=(FileNotFoundError,)):
            text = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        identity = Identity(**json.loads(text))
    except (ValueError, TypeError, RecursionError):
        identity = Identity({}, {}, {})
    if not identity.digests or not all(isinstance(part, dict) for part in vars(identity).values()):
        raise RestoreCheckpointError(f"{path} is damaged: restore it from a backup.")
    return identity


def write_identity(folder: Path, identity: Identity) -> None:
    text = json.dumps(dataclasses.asdict(identity), indent=2)
    write_atomically(folder / IDENTITY, text, private=True)


def plan_settings(plan: DPExecutionPlan) -> dict[str, Any]:
    """Returns the fields of a plan that its fingerprint covers, by dotted names."""
    named = {part: named_values(getattr(plan, part)) for part in ("mechanism", "clip", "unit")}
    for values in named.values():
        values.pop(KIND)
    named["expected_batch_size"] = named_values(plan.expected_batch_size)
    named["draw"] = DRAW_VERSION
    return flatten({"plan": named})


def named_values(value: Any) -> Any:
    """Converts dataclasses to dicts, and other values to what JSON can represent."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kind = {KIND: getattr(type(value), "recorded_name", type(value).__name__)}
        return kind | {name: named_values(x) for name, x in recorded_fields(value).items()}
    if isinstance(value, Mapping):
        return {str(name): named_values(item) for name, item in value.items()}
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, tuple | list):
        return [named_values(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return value.item() if hasattr(value, "item") and getattr(value, "size", 1) == 1 else str(value)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens nested mappings to dotted names. The value of a dataclass is its class name."""
    values: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            values |= flatten(value, f"{prefix}{name}.")
        else:
            values[prefix[:-1] if name == KIND else f"{prefix}{name}"] = value
    return values


def _format(value: Any) -> str:
    if isinstance(value, list) and len(value) > MAX_SHOWN:
        return f"({len(value)} values)"
    return str(value)
