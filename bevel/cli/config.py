"""The config of a run: a TOML file whose tables are these dataclasses.

A config holds no secrets: a run draws its keys and seeds when it begins and keeps them in its
folder.
"""

import dataclasses
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from bevel.checks import nearest
from bevel.cli.toml_lines import line_of
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


def read_config(
    path: str | Path, left_out: Mapping[str, Mapping[str, Any]] | None = None
) -> Config:
    """Reads a TOML config and checks every key and type.

    `left_out` has values for keys that the file leaves out, by the names of their tables.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        tables = tomllib.loads(text)
    except FileNotFoundError:
        raise FixArgumentsError(f"there is no config at {path}: check the path.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FixArgumentsError(f"{path} is not valid TOML: {error}.") from None
    for name, values in (left_out or {}).items():
        if isinstance(tables.setdefault(name, {}), Mapping):
            tables[name] = {**values, **tables[name]}
    return _from_table(Config, tables, _Place(path, text))


@dataclasses.dataclass(frozen=True)
class _Place:
    """A key in a config file, as error messages name it: 'run.toml, line 3: [plan] steps'."""

    path: Path
    text: str
    keys: tuple[str, ...] = ()

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
                f"{where} unknown key {name!r}{nearest(name, fields)} "
                f"The keys are: {', '.join(fields)}."
            )
    for name, field in fields.items():
        optional = {field.default, field.default_factory} != {dataclasses.MISSING}
        if name not in table and not optional:
            raise FixArgumentsError(f"{place.of(name)} is missing{expected(hints[name])}.")
    values = {name: checked(value, hints[name], place.of(name)) for name, value in table.items()}
    return kind(**values)


def checked(value: Any, hint: Any, where: _Place | str) -> Any:
    """Checks a value against the type of its field, and converts it. `where` names the field."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type) and isinstance(where, _Place):
        if not isinstance(value, Mapping):
            raise FixArgumentsError(f"{where} is {value!r}: write a table.")
        return _from_table(hint, value, where)
    choices = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        if value in choices:
            return value
        near = nearest(str(value), choices)
        raise FixArgumentsError(f"{where} is {value!r}{near} Use one of: {', '.join(choices)}.")
    if typing.get_origin(hint) is tuple and isinstance(value, list):
        return tuple(checked(item, choices[0], where) for item in value)
    allowed = choices if isinstance(hint, types.UnionType) else (hint,)
    lists = [kind for kind in allowed if typing.get_origin(kind) is tuple]
    if isinstance(value, list) and lists:
        return checked(value, lists[0], where)
    if typing.get_origin(hint) is dict and isinstance(value, Mapping):
        return {name: declared(item) for name, item in value.items()}
    if float in allowed and type(value) is int:
        return float(value)
    if type(value) in (bool, int, float, str) and type(value) in allowed:
        return value
    raise FixArgumentsError(f"{where} is {value!r}{expected(hint)}.")


def expected(hint: Any) -> str:
    """The end of an error message: ': set it to a number', or nothing for other types."""
    names = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}
    known = [names[kind] for kind in typing.get_args(hint) or (hint,) if kind in names]
    return f": set it to {' or '.join(known)}" if known else ""
