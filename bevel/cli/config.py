"""The config of a run: a TOML file whose tables are these dataclasses.

A config holds no secrets: a run draws its keys and seeds when it begins and keeps them in its
folder.
"""

import dataclasses
import tomllib
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from bevel.accounting.arguments import check_budget
from bevel.checks import (
    as_float,
    finite_number,
    nearest,
    positive_number,
    shown,
    whole_number,
)
from bevel.checks import path as checked_path
from bevel.cli.toml_lines import line_of
from bevel.cli.toml_tables import not_toml
from bevel.datasets import AugmentationTable, DataTable, declared
from bevel.errors import FixArgumentsError
from bevel.models import ModelTable

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class PlanTable:
    """The privacy plan. Set delta, and either epsilon or the noise multiplier."""

    batch_size: float
    """Expected number of examples in a batch."""
    steps: int
    """Number of steps of the whole run."""
    mechanism: Literal["dpsgd", "bandmf", "blt", "none"] = "dpsgd"
    """Independent noise, correlated noise (docs/execution_plan.md), or no privacy at all."""
    epsilon: float | None = None
    """Privacy budget of the run. The noise is calibrated to it."""
    delta: float | None = None
    """Should be well below one over the number of examples."""
    noise_multiplier: float | None = None
    """Instead of epsilon: noise stddev over the bound on one example's contribution."""
    clip_norm: float = 1.0
    """Bound on the norm of one example's gradient. Gradients are also divided by it."""
    adapt_clip_norm_to: float | None = None
    """Let the clip norm follow this quantile of the gradient norms, privately."""
    sampling: str | None = None
    """How batches are sampled. The default depends on the mechanism."""
    relation: str | None = None
    """Which data sets are neighbours. The default depends on the mechanism."""
    bands: int = 8
    """bandmf only: number of steps over which noise is correlated."""
    examples_per_user: int = 1
    """With [data] user: the most examples of one user in a batch. batch_size counts users then."""
    min_sep: int | None = None
    """blt only: steps between two uses of an example. By default an epoch."""
    buffers: int = 4
    """blt only: noise buffers, each as large as the gradient."""


@dataclasses.dataclass(frozen=True)
class OptimizerTable:
    """How noised gradients update the parameters. Nothing here changes epsilon."""

    name: Literal["sgd", "adam", "dp_adam"] = "sgd"
    """dp_adam corrects Adam's second moment for the noise."""
    learning_rate: float = 0.5
    """Gradients are divided by the clip norm, so this need not change with it."""
    momentum: float = 0.9
    """sgd only."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Learning rate schedule."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises from 0."""
    ema_decay: float | None = None
    """Keep a moving average of the parameters, and measure accuracy on it."""


@dataclasses.dataclass(frozen=True)
class MeshTable:
    """The device mesh."""

    axes: str | None = None
    """Such as 'data=4,model=2'. One size may be -1. By default all devices along data."""
    rules: Literal["replicated", "fsdp", "tensor"] = "replicated"
    """How parameters are sharded."""
    cpu_devices: int | None = None
    """Run on this many virtual CPU devices."""


@dataclasses.dataclass(frozen=True)
class RunTable:
    """The run folder, checkpoints and ledger."""

    folder: str = "runs/run"
    """Holds released/ (may be shown) and private/. A run that is already there resumes."""
    checkpoint_every: int = 50
    """Steps between checkpoints. Each one measures accuracy and releases results."""
    keep: int = 3
    """Number of checkpoints to keep."""
    ledger: str | None = None
    """A ledger file that several runs share. By default the run has its own."""
    ledger_epsilon: float | None = None
    """What all runs of the ledger may spend together. By default epsilon of [plan]."""
    anchor: str | None = None
    """A file on other storage that reveals whether the ledger was rolled back."""
    tuning: Literal["unknown", "public"] = "unknown"
    """How the settings were chosen: 'public' means by theory or on data that is not protected."""
    accept: tuple[str, ...] = ()
    """What may differ from the run as it began: 'optimizer.learning_rate', 'loss', ..."""
    compilations: int = 1
    """Number of padded batch sizes. Each compiles its own program."""
    microbatch_size: int | None = None
    """Process this many examples at a time, to bound memory. Results do not depend on it."""
    test_seed: int | None = None
    """For tests only: makes the noise known, so nothing is protected."""


@dataclasses.dataclass(frozen=True)
class Config:
    """The config of a run."""

    plan: PlanTable
    data: DataTable = dataclasses.field(default_factory=DataTable)
    augmentation: AugmentationTable = dataclasses.field(default_factory=AugmentationTable)
    model: ModelTable = dataclasses.field(default_factory=ModelTable)
    optimizer: OptimizerTable = dataclasses.field(default_factory=OptimizerTable)
    mesh: MeshTable = dataclasses.field(default_factory=MeshTable)
    run: RunTable = dataclasses.field(default_factory=RunTable)


def _share(name: str, value: float) -> None:
    if finite_number(name, value, "such as 0.9", 0, 1) == 1:
        raise FixArgumentsError(f"{name}={value}: pass a number below 1, such as 0.9.")


def _number(name: str, value: float) -> None:
    positive_number(name, value, "such as 1.0")


# What each key may be, besides its type. The other tables check their values themselves.
CHECKS: dict[tuple[str, str], Callable[[str, Any], Any]] = {
    **{
        ("PlanTable", name): _number
        for name in ("batch_size", "epsilon", "noise_multiplier", "clip_norm")
    },
    **{
        ("PlanTable", name): whole_number
        for name in ("steps", "bands", "examples_per_user", "min_sep", "buffers")
    },
    ("PlanTable", "delta"): lambda name, value: check_budget(delta=value),
    ("PlanTable", "adapt_clip_norm_to"): lambda name, value: finite_number(
        name, value, "a fraction of the examples", 0, 1
    ),
    ("OptimizerTable", "learning_rate"): _number,
    ("OptimizerTable", "momentum"): _share,
    ("OptimizerTable", "ema_decay"): _share,
    ("OptimizerTable", "warmup_steps"): lambda name, value: whole_number(name, value, 0),
    ("MeshTable", "cpu_devices"): lambda name, value: whole_number(
        name, value, 1, 1024, "Each device starts threads."
    ),
    **{("RunTable", name): checked_path for name in ("folder", "ledger", "anchor")},
    **{
        ("RunTable", name): whole_number for name in ("checkpoint_every", "keep", "microbatch_size")
    },
    ("RunTable", "compilations"): lambda name, value: whole_number(
        name, value, 1, 100, "Each is a compiled program."
    ),
    ("RunTable", "ledger_epsilon"): _number,
    ("RunTable", "test_seed"): lambda name, value: whole_number(name, value, 0, 2**64 - 1),
}


def read_config(
    path: str | Path, left_out: Mapping[str, Mapping[str, Any]] | None = None
) -> Config:
    """Reads a TOML config and checks every key and type.

    `left_out` has values for keys that the file leaves out, by the names of their tables.
    """
    path = Path(checked_path("path", path))
    try:
        written = path.read_text(encoding="utf-8")
        tables = tomllib.loads(written)
    except FileNotFoundError:
        raise FixArgumentsError(f"there is no config at {path}: check the path.") from None
    except OSError as error:
        raise FixArgumentsError(f"{path} cannot be read: {error.strerror}.") from None
    except (RecursionError, ValueError) as error:  # ValueError: also for numbers with 5000 digits
        raise not_toml(path, error) from None
    for name in left_out or {}:
        tables.setdefault(name, {})
    return _from_table(Config, tables, _Place(path, written, left_out=left_out or {}))


@dataclasses.dataclass(frozen=True)
class _Place:
    """A key in a config file, as error messages name it: 'run.toml, line 3: [plan] steps'."""

    path: Path
    text: str
    keys: tuple[str, ...] = ()
    left_out: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def of(self, *keys: str) -> "_Place":
        return dataclasses.replace(self, keys=(*self.keys, *keys))

    def __str__(self) -> str:
        line = line_of(self.text, self.keys)
        table, *key = self.keys or ("",)
        names = [f"[{table}]" if table in typing.get_type_hints(Config) else table, ".".join(key)]
        where = f"{self.path}:" if line is None else f"{self.path}, line {line}:"
        return " ".join(filter(None, [where, *names]))


def _from_table(kind: type[T], table: Mapping[str, Any], place: _Place) -> T:
    """Builds a dataclass from a TOML table. `place` names the table in error messages."""
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(kind)
    for name in table:
        if name not in fields:
            where = str(place.of(name)).removesuffix(name).rstrip()
            raise FixArgumentsError(
                f"{where} unknown key {shown(name)}{nearest(name, fields)} "
                f"The keys are: {', '.join(fields)}."
            )
    assumed = place.left_out.get(".".join(place.keys), {})
    for name, field in fields.items():
        optional = name in assumed or {field.default, field.default_factory} != {
            dataclasses.MISSING
        }
        if name not in table and not optional:
            raise FixArgumentsError(f"{place.of(name)} is missing{expected(hints[name])}.")
    values = {name: checked(value, hints[name], place.of(name)) for name, value in table.items()}
    try:
        for name, value in values.items():
            check_value(kind, name, value)
        return kind(**{**assumed, **values})
    except FixArgumentsError as error:
        name = str(error).partition("=")[0].rpartition(" ")[2]
        where = str(place.of(name)).removesuffix(name).rstrip() if name in values else str(place)
        raise FixArgumentsError(f"{where} {error}") from None


def checked(value: Any, hint: Any, where: _Place | str) -> Any:
    """Checks a value against the type of its field, and converts it. `where` names the field."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type) and isinstance(where, _Place):
        if not isinstance(value, Mapping):
            raise FixArgumentsError(f"{where} is {shown(value)}: write a table.")
        return _from_table(hint, value, where)
    choices = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        if isinstance(value, str) and value in choices:
            return value
        near = nearest(shown(value), choices)
        raise FixArgumentsError(
            f"{where} is {shown(value)}{near} Use one of: {', '.join(choices)}."
        )
    if typing.get_origin(hint) is tuple and isinstance(value, list):
        return tuple(checked(item, choices[0], where) for item in value)
    allowed = choices if isinstance(hint, types.UnionType) else (hint,)
    lists = [kind for kind in allowed if typing.get_origin(kind) is tuple]
    if isinstance(value, list) and lists:
        return checked(value, lists[0], where)
    if typing.get_origin(hint) is dict and isinstance(value, Mapping):
        return {name: declared(item) for name, item in value.items()}
    if float in allowed and type(value) is int:
        return as_float(value)
    if type(value) in (bool, int, float, str) and type(value) in allowed:
        return value
    raise FixArgumentsError(f"{where} is {shown(value)}{expected(hint)}.")


def check_value(table: Any, name: str, value: Any) -> None:
    """Raises for a value that no run can have, such as a negative number of steps."""
    check = CHECKS.get((table.__name__, name))
    if check is not None and value is not None:
        check(name, value)


def expected(hint: Any) -> str:
    """The end of an error message: ': set it to a number', or nothing for other types."""
    names = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}
    known = [names[kind] for kind in typing.get_args(hint) or (hint,) if kind in names]
    return f": set it to {' or '.join(known)}" if known else ""
