"""Reads the arrays and numbers of a run folder, to look for traces in them."""

import dataclasses
import json
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from bevel.training.array_files import array_handler
from bevel.training.folder import CHECKPOINTS, PRIVATE, RAW, RELEASED


@dataclasses.dataclass(frozen=True)
class Trace:
    """Something private in a released file.

    Attributes:
      file: the path of the file below `released/`.
      entry: the array or number in it.
      what: what it contains.
    """

    file: str
    entry: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}, {self.entry}: {self.what}"


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def shown(path: Path, root: Path) -> str:
    """The path of a released file, as a trace names it."""
    return path.relative_to(root / RELEASED).as_posix()


def checkpoint_arrays(half: Path) -> dict[Path, dict[str, np.ndarray]]:
    """The arrays of all checkpoints of one half of a run, by their paths, oldest first."""
    folder = half / CHECKPOINTS
    steps = [path for path in folder.iterdir() if path.name.isdigit()] if folder.is_dir() else []
    return {path: _arrays_of(path) for path in sorted(steps, key=lambda path: int(path.name))}


def other_arrays(released: Path) -> Iterator[tuple[Path, str, np.ndarray]]:
    """The arrays of .npy and .npz files, with the names of their entries."""
    for path in files(released):
        if path.suffix == ".npy":
            yield path, "array", np.load(path)
        elif path.suffix == ".npz":
            with np.load(path) as file:
                yield from ((path, name, file[name]) for name in file.files)


def _arrays_of(checkpoint: Path) -> dict[str, np.ndarray]:
    names = sorted(path.name for path in checkpoint.iterdir() if path.is_dir())
    if not names:
        return {}
    args = ocp.args.PyTreeRestore(
        item=dict.fromkeys(names, 0),
        restore_args={name: ocp.RestoreArgs(restore_type=np.ndarray) for name in names},
        partial_restore=True,
    )
    with warnings.catch_warnings(), ocp.Checkpointer(array_handler()) as reader:
        warnings.simplefilter("ignore")
        found = reader.restore(checkpoint.absolute(), args=args)
    return {name.split(".", 1)[-1]: np.asarray(found[name]) for name in names}


def is_real(array: np.ndarray) -> bool:
    """Whether an array holds real floating-point numbers, in any precision."""
    return bool(jnp.issubdtype(array.dtype, jnp.floating))


def raw_lines(root: Path) -> list[Mapping[str, Any]]:
    """The lines of `private/raw.jsonl`."""
    raw = root / PRIVATE / RAW
    return [json.loads(line) for line in raw.read_text().splitlines()] if raw.exists() else []


def numbers_of(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """The real numbers in a JSON value, by dotted names."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from numbers_of(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from numbers_of(item, f"{name}.{index}")
    elif isinstance(value, float):
        yield name, value


def released_numbers(root: Path) -> Iterator[tuple[Path, str, float]]:
    """The real numbers in all released JSON files, with their places."""
    for path in files(root / RELEASED):
        if path.suffix == ".json":
            yield from ((path, name, x) for name, x in numbers_of(json.loads(path.read_text())))
        elif path.suffix == ".jsonl":
            for line, text in enumerate(path.read_text().splitlines(), 1):
                for name, x in numbers_of(json.loads(text)):
                    yield path, f"line {line}: {name}", x
