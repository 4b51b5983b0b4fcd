"""What a run is: recorded when it begins, compared whenever it goes on.

| what changed                                                     | what happens               |
| ---------------------------------------------------------------- | -------------------------- |
| data, plan, initial or frozen parameters, structure of the state | refused: it is another run |
| optimizer (learning rate), loss, ema_decay, settings with names  | refused unless it is named |
|                                                                  | in `RunOptions(accept=)`   |
| mesh, device, processes, versions, where the data lies           | noted                      |

Values with names (fields of the plan, keys of a config, `RunOptions(settings=...)`) are shown as
they were and are; what has no name is compared by a digest. The record is private: a digest of the
data or of a program that holds some of it tells whoever has a guess whether it is right.
"""

import dataclasses
import enum
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bevel.errors import FixArgumentsError, RestoreCheckpointError
from bevel.execution_plan import DPExecutionPlan
from bevel.training.folder import IDENTITY, write_whole

# What `accept` may name, beside settings that the user named.
ACCEPTABLE = ("optimizer", "loss", "ema_decay")
# Parts that cannot change within a run, by the first part of their names.
FIXED = ("data", "plan", "structure", "initial parameters", "frozen parameters")
# Settings that do not matter: where, and on what.
NOTED = ("mesh", "data.source")
KIND = ""
# Sequences longer than this are not shown.
SHOWN = 8


@dataclasses.dataclass(frozen=True)
class Identity:
    """What a run is.

    Attributes:
      settings: values by dotted names. Public.
      digests: of what has no name. Private.
      surroundings: mesh, device, versions. Public.
    """

    settings: dict[str, Any]
    digests: dict[str, str]
    surroundings: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Change:
    """A value that is not what it was; `before` and `now` are None where it has no name."""

    name: str
    before: Any = None
    now: Any = None
    of_surroundings: bool = False

    def __str__(self) -> str:
        if self.before is None and self.now is None:
            return WORDS.get(self.name, f"the {self.name} differ")
        return f"{self.name} {_shown(self.before)} -> {_shown(self.now)}"

    @property
    def kind(self) -> str:
        """'fixed', 'noted' or 'acceptable'."""
        head = self.name.split(".")[0]
        if self.of_surroundings or self.name in NOTED or head in NOTED:
            return "noted"
        return "fixed" if head in FIXED else "acceptable"

    def is_accepted(self, words: Sequence[str]) -> bool:
        return any(self.name == word or self.name.startswith(f"{word}.") for word in words)


WORDS = {
    "data": "the data differ",
    "optimizer": "the optimizer's program differs",
    "structure": "the state has another structure (trained parameters, optimizer, average)",
    "loss": "the loss's program differs",
    "loss.derivative": "a rule for the loss's derivative differs",
    "plan": "the plan differs",
}


def changes(before: Identity, now: Identity) -> list[Change]:
    """All that is not as it was. A digest is left out where a named value explains it."""
    named = [
        Change(name, before.settings.get(name), now.settings.get(name))
        for name in sorted(before.settings.keys() | now.settings.keys())
        if _differ(before.settings.get(name), now.settings.get(name))
    ]
    explained = {change.name.split(".")[0] for change in named if change.kind != "noted"}
    unnamed = [
        Change(name)
        for name, digest in now.digests.items()
        if digest and before.digests.get(name) not in (digest, "") and name not in explained
    ]
    if any(change.name == "loss" for change in unnamed):
        unnamed = [change for change in unnamed if change.name != "loss.derivative"]
    around = flat(before.surroundings), flat(now.surroundings)
    noted = [
        Change(name, around[0].get(name), around[1].get(name), of_surroundings=True)
        for name in sorted(around[0].keys() | around[1].keys())
        if _differ(around[0].get(name), around[1].get(name))
    ]
    return named + unnamed + noted


def _differ(before: Any, now: Any) -> bool:
    """As JSON, where NaN is NaN."""
    return json.dumps(before, sort_keys=True) != json.dumps(now, sort_keys=True)


def check_goes_on(
    before: Identity, now: Identity, accept: Sequence[str], where: str
) -> list[Change]:
    """The changes that a run goes on with. Raises for those that it may not have."""
    found = changes(before, now)
    if any(change.kind == "fixed" for change in found):
        differing = [str(change) for change in found if change.kind != "noted"]
        raise RestoreCheckpointError(
            f"{where} holds another run: {'; '.join(differing)}. Its epsilon is for what it was "
            "begun with. Go on with that, or begin another run in another folder, and on the same "
            "data in the same ledger."
        )
    asked = [c for c in found if c.kind == "acceptable" and not c.is_accepted(accept)]
    if asked:
        words = sorted({change.name for change in asked})
        newer = [str(c) for c in found if c.name.startswith("versions.jax")]
        maybe = f" (or {newer[0]} writes the same program differently)" if newer else ""
        raise RestoreCheckpointError(
            f"{where} was begun otherwise: {'; '.join(map(str, asked))}{maybe}. Epsilon does not "
            f"depend on it, the model does. Go on as it was begun, or accept it: "
            f"RunOptions(accept={words!r}), on the command line --accept {' '.join(words)}."
        )
    return found


def check_accept(accept: Sequence[str]) -> None:
    """Raises for what can never be accepted."""
    is_list = isinstance(accept, Sequence) and not isinstance(accept, str)
    if not is_list or not all(isinstance(word, str) for word in accept):
        raise FixArgumentsError(f"accept={accept!r}: give a list of names, such as ['optimizer'].")
    for word in accept:
        if Change(word).kind == "fixed":
            raise FixArgumentsError(
                f"accept={list(accept)!r}: {word!r} cannot change within a run, because its "
                f"epsilon is for what it was begun with. May be accepted: {', '.join(ACCEPTABLE)}, "
                "and settings that you named."
            )


def read_identity(folder: Path) -> Identity | None:
    """What a run was begun with; None if it was not."""
    path = folder / IDENTITY
    if not path.exists():
        return None
    try:
        found = Identity(**json.loads(path.read_text()))
    except (ValueError, TypeError):
        found = Identity({}, {}, {})
    if not found.digests or not all(isinstance(part, dict) for part in vars(found).values()):
        raise RestoreCheckpointError(f"{path} is damaged: restore it from a copy.")
    return found


def write_identity(folder: Path, identity: Identity) -> None:
    text = json.dumps(dataclasses.asdict(identity), indent=2)
    write_whole(folder / IDENTITY, text, private=True)


def plan_settings(plan: DPExecutionPlan) -> dict[str, Any]:
    """The fields of a plan by dotted names: what its fingerprint is made of."""
    parts = {
        "mechanism": plan.mechanism,
        "clip": plan.clip,
        "unit": plan.unit,
        "expected_batch_size": plan.expected_batch_size,
    }
    named = {name: named_values(part) for name, part in parts.items()}
    for part in ("mechanism", "clip", "unit"):
        named[part].pop(KIND)  # it is the same for all plans
    return flat({"plan": named})


def named_values(value: Any) -> Any:
    """Dataclasses as dicts, and what is left as JSON has it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kind = {KIND: type(value).__name__}
        return kind | {
            f.name: named_values(getattr(value, f.name)) for f in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(name): named_values(item) for name, item in value.items()}
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, tuple | list):
        return [named_values(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return value.item() if hasattr(value, "item") and getattr(value, "size", 1) == 1 else str(value)


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by dotted names. The class of a part is the value of the part's own name."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[prefix[:-1] if name == KIND else f"{prefix}{name}"] = value
    return found


def _shown(value: Any) -> str:
    if isinstance(value, list) and len(value) > SHOWN:
        return f"({len(value)} values)"
    return str(value)
