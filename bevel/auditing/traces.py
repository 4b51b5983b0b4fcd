"""Traces of secrets, noise or raw values in the half of a run folder that anyone may see.

It needs both halves of the folder, so only the owner can look. What a run releases contains the
noise that was added to the sums, which protects them. Noise by itself is another matter: whoever
has it can subtract it. Three kinds of traces are looked for in every file under `released/`:

- an array that is a linear combination of the noise buffers in `private/checkpoints/`, up to
  rounding. Arrays that contain sums as well as noise are not: the sums remain. A parameter whose
  gradients were all exactly zero looks the same, because its sums are noise alone.
- a number that is equal, in all of its digits, to one in `private/raw.jsonl`. Numbers of fewer than
  9 digits are left out, because they are equal by chance.
- the secret bits of the run, as bytes, as text, or as the seed derived from them.

An empty result proves little: a trace may be hidden by any change that is not linear.
"""

import dataclasses
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp

from bevel.errors import FixArgumentsError
from bevel.training.checkpoint import array_handler
from bevel.training.folder import CHECKPOINTS, PRIVATE, RAW, RELEASED, SECRETS
from bevel.training.secrets import read_secrets

_ROUNDING = 1e-5  # of the norm: what may be left of an array that is a combination of others
_FEWEST = 8  # elements more than buffers, so that a combination does not fit by chance
_FEWEST_DIGITS = 9
_PUBLIC = {"step", "attempt", "clip_norm"}  # raw values that are public or released anyway


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


def released_traces(folder: str | os.PathLike[str]) -> tuple[Trace, ...]:
    """Looks for traces of noise, raw values and secrets in everything that a run has released.

    Args:
      folder: the folder of a run, with both halves.
    """
    root = Path(folder)
    for half in (RELEASED, PRIVATE):
        if not (root / half).is_dir():
            raise FixArgumentsError(
                f"{root} has no {half}/: pass the folder of a run with both halves, because traces "
                "of private values can only be found by those who have them."
            )
    return (*_secret_traces(root), *_array_traces(root), *_number_traces(root))


def _files(released: Path) -> list[Path]:
    return sorted(path for path in released.rglob("*") if path.is_file())


def _secret_traces(root: Path) -> Iterator[Trace]:
    if not (root / PRIVATE / SECRETS).exists():
        return
    secrets = read_secrets(root / PRIVATE / SECRETS)
    needles = {
        "the secret bits": secrets.root,
        "the secret bits, as text": secrets.root.hex().encode(),
        "the seed of the batches": str(secrets.sampling_seed).encode(),
    }
    for path in _files(root / RELEASED):
        content = path.read_bytes()
        for what, needle in needles.items():
            if needle in content:
                yield Trace(
                    _shown(path, root), f"byte {content.index(needle)}", f"{what} of the run"
                )


def _array_traces(root: Path) -> Iterator[Trace]:
    buffers: dict[int, list[np.ndarray]] = {}
    for checkpoint in _numbered(root / PRIVATE / CHECKPOINTS):
        for array in _checkpoint_arrays(checkpoint).values():
            if np.issubdtype(array.dtype, np.floating) and array.any():
                for own in _with_rows(array):
                    buffers.setdefault(own.size, []).append(own.astype(np.float64).ravel())
    for path, name, array in _released_arrays(root / RELEASED):
        if not np.issubdtype(array.dtype, np.floating) or not array.any():
            continue
        for row, own in enumerate(_with_rows(array)):
            noise = buffers.get(own.size, [])
            if noise and _is_combination(own.astype(np.float64).ravel(), noise):
                part = f"[{row - 1}]" if row else ""
                what = "a linear combination of the noise buffers of the run"
                yield Trace(_shown(path, root), f"{name}{part}", what)
                break


def _with_rows(array: np.ndarray) -> list[np.ndarray]:
    """An array and its rows: buffers are stacked along the first dimension."""
    return [array, *(array if array.ndim > 1 else ())]


def _is_combination(values: np.ndarray, noise: list[np.ndarray]) -> bool:
    """Whether an array is a combination of noise vectors, or of one where there are too many."""
    if values.size <= _FEWEST or not np.isfinite(values).all():
        return False
    together = len(noise) + _FEWEST <= values.size
    for vectors in [noise] if together else [[vector] for vector in noise]:
        matrix = np.stack(vectors, axis=1)
        matrix = matrix / np.linalg.norm(matrix, axis=0)
        rest = values - matrix @ np.linalg.lstsq(matrix, values, rcond=None)[0]
        if np.linalg.norm(rest) <= _ROUNDING * np.linalg.norm(values):
            return True
    return False


def _released_arrays(released: Path) -> Iterator[tuple[Path, str, np.ndarray]]:
    for checkpoint in _numbered(released / CHECKPOINTS):
        for name, array in _checkpoint_arrays(checkpoint).items():
            yield checkpoint, name, array
    for path in _files(released):
        if path.suffix == ".npy":
            yield path, "array", np.load(path)
        elif path.suffix == ".npz":
            with np.load(path) as file:
                yield from ((path, name, file[name]) for name in file.files)


def _checkpoint_arrays(checkpoint: Path) -> dict[str, np.ndarray]:
    """All arrays of one half of a checkpoint, by their paths."""
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


def _numbered(folder: Path) -> list[Path]:
    steps = [path for path in folder.iterdir() if path.name.isdigit()] if folder.is_dir() else []
    return sorted(steps, key=lambda path: int(path.name))


def _number_traces(root: Path) -> Iterator[Trace]:
    raw = root / PRIVATE / RAW
    private = {
        value: name
        for line in (raw.read_text().splitlines() if raw.exists() else ())
        for name, value in _numbers(json.loads(line))
        if name.split(".")[0] not in _PUBLIC
    }
    for path in _files(root / RELEASED):
        if path.suffix not in (".json", ".jsonl"):
            continue
        lines = path.read_text().splitlines()
        whole = path.suffix == ".json"
        for number, text in enumerate(["\n".join(lines)] if whole else lines, 1):
            for name, value in _numbers(json.loads(text)):
                if value in private:
                    entry = name if whole else f"line {number}: {name}"
                    what = f"equal to the raw value of {private[value]}"
                    yield Trace(_shown(path, root), entry, what)


def _numbers(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Numbers of many digits in a JSON value, by dotted names."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _numbers(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _numbers(item, f"{name}.{index}")
    elif isinstance(value, float) and len(repr(value).strip("-0.").replace(".", "")) >= (
        _FEWEST_DIGITS
    ):
        yield name, value


def _shown(path: Path, root: Path) -> str:
    return path.relative_to(root / RELEASED).as_posix()
