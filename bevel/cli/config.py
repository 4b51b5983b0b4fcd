"""The config of a run: a TOML file whose tables are these dataclasses.

Nothing secret is in it: keys and seeds of a run are drawn when it begins, and kept in its folder.
"""

import dataclasses
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from bevel.cli.dispatch import nearest
from bevel.errors import FixArgumentsError

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class DataTable:
    """What is trained on, and what accuracy is measured on."""

    source: str = "digits"
    """'digits' (scikit-learn's), or an .npz file with x_train, y_train, x_test and y_test."""
    tune: bool = False
    """Hold the last fifth of the training set out, and measure there: to choose options by."""


@dataclasses.dataclass(frozen=True)
class ModelTable:
    """What is trained. Initial parameters are public, so their seed is no secret."""

    kind: Literal["conv", "mlp", "linear"] = "conv"
    """A small network of convolutions, one of dense layers, or a linear model."""
    widths: tuple[int, ...] = (16, 32)
    """Channels of the convolutions, or units of the hidden layers."""
    module: str | None = None
    """'file.py:function' for your own: function(shape, classes) gives a bevel.cli.models.Model."""
    init_seed: int = 0
    """Of the parameters to begin with."""


@dataclasses.dataclass(frozen=True)
class PlanTable:
    """How privately. Give epsilon and delta, or a noise multiplier and delta."""

    batch_size: float
    """Examples in a batch, on average."""
    steps: int
    """Steps of the whole run."""
    mechanism: Literal["dpsgd", "bandmf", "blt", "none"] = "dpsgd"
    """Independent noise, correlated noise (docs/execution_plan.md), or no privacy at all."""
    epsilon: float | None = None
    """The budget of the run, for which noise is calibrated."""
    delta: float | None = None
    """Well below one over the number of examples."""
    noise_multiplier: float | None = None
    """Instead of epsilon: noise over the bound of one example."""
    clip_norm: float = 1.0
    """Bound of one example's gradient, by which gradients are divided too."""
    adapt_clip_norm_to: float | None = None
    """Let the clip norm follow this quantile of the norms, privately."""
    sampling: str | None = None
    """How batches are drawn; by default the mechanism's first choice."""
    relation: str | None = None
    """Which data sets are neighbours; by default the mechanism's first choice."""
    bands: int = 8
    """Of bandmf: steps over which noise is correlated."""
    min_sep: int | None = None
    """Of blt: steps between two uses of an example; by default an epoch."""
    buffers: int = 4
    """Of blt: copies of the gradient that the noise keeps."""


@dataclasses.dataclass(frozen=True)
class OptimizerTable:
    """What is done with noised gradients. Nothing here changes epsilon."""

    name: Literal["sgd", "adam", "dp_adam"] = "sgd"
    """dp_adam corrects Adam's second moment for the noise."""
    learning_rate: float = 0.5
    """Gradients are divided by the clip norm, so it need not change with that."""
    momentum: float = 0.9
    """Of sgd."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Of the learning rate."""
    warmup_steps: int = 0
    """Over which the learning rate rises from 0."""
    ema_decay: float | None = None
    """Average parameters over steps; accuracy is then that of the average."""


@dataclasses.dataclass(frozen=True)
class MeshTable:
    """On which devices."""

    axes: str | None = None
    """'data=4,model=2', one size may be -1; by default all devices along data."""
    rules: Literal["replicated", "fsdp", "tensor"] = "replicated"
    """Where parameters lie."""
    cpu_devices: int | None = None
    """Run on so many virtual CPU devices."""


@dataclasses.dataclass(frozen=True)
class RunTable:
    """Where it is kept."""

    folder: str = "runs/run"
    """What may be shown (released/) and what may not (private/). A run that is there goes on."""
    checkpoint_every: int = 50
    """Steps; accuracy is measured then, and results are released."""
    keep: int = 3
    """Checkpoints."""
    ledger: str | None = None
    """One that several runs share; by default the run's own."""
    anchor: str | None = None
    """A file on other storage that shows whether the ledger was rolled back."""
    accept: tuple[str, ...] = ()
    """What may differ from when the run was begun: 'optimizer.learning_rate', 'loss', ..."""
    compilations: int = 1
    """Sizes that batches are padded to, each with a program of its own."""
    test_seed: int | None = None
    """For tests only: the noise is known then, and nothing is protected."""


@dataclasses.dataclass(frozen=True)
class Config:
    """A run."""

    plan: PlanTable
    data: DataTable = dataclasses.field(default_factory=DataTable)
    model: ModelTable = dataclasses.field(default_factory=ModelTable)
    optimizer: OptimizerTable = dataclasses.field(default_factory=OptimizerTable)
    mesh: MeshTable = dataclasses.field(default_factory=MeshTable)
    run: RunTable = dataclasses.field(default_factory=RunTable)


def read_config(path: str | Path) -> Config:
    """The config in a TOML file, every key and type checked."""
    place = Path(path)
    try:
        tables = tomllib.loads(place.read_text())
    except FileNotFoundError:
        raise FixArgumentsError(f"there is no config at {place}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FixArgumentsError(f"{place} is not TOML: {error}.") from None
    return _made(Config, tables, str(place))


def _made(kind: type[T], table: Mapping[str, Any], where: str) -> T:
    """A dataclass from a table. Unknown and missing keys and wrong types are errors."""
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(kind)
    for name in table:
        if name not in fields:
            raise FixArgumentsError(
                f"{where} has no place for {name!r}{nearest(name, fields)} "
                f"There are: {', '.join(fields)}."
            )
    for name, field in fields.items():
        optional = {field.default, field.default_factory} != {dataclasses.MISSING}
        if name not in table and not optional:
            raise FixArgumentsError(f"{where} lacks {name!r}{_shown_kind(hints[name])}.")
    values = {
        name: _checked(value, hints[name], f"{where}, {name}") for name, value in table.items()
    }
    return kind(**values)


def _checked(value: Any, hint: Any, where: str) -> Any:
    """A value of TOML as its field has it."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, Mapping):
            raise FixArgumentsError(f"{where} is {value!r}: write a table, with keys of its own.")
        return _made(hint, value, where)
    choices = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        if value in choices:
            return value
        near = nearest(str(value), choices)
        raise FixArgumentsError(f"{where} is {value!r}{near} There are: {', '.join(choices)}.")
    if typing.get_origin(hint) is tuple and isinstance(value, list):
        return tuple(_checked(item, choices[0], where) for item in value)
    allowed = choices if isinstance(hint, types.UnionType) else (hint,)
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if float in allowed and is_whole:
        return float(value)
    for plain in (bool, int, float, str):
        if plain in allowed and type(value) is plain:
            return value
    raise FixArgumentsError(f"{where} is {value!r}{_shown_kind(hint)}.")


def _shown_kind(hint: Any) -> str:
    """': give a number', and the like."""
    words = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "a text"}
    names = [kind.__name__ for kind in typing.get_args(hint) or (hint,) if isinstance(kind, type)]
    known = [words[name] for name in names if name in words]
    return f": give {' or '.join(known)}" if known else ""
