"""The files of an exported model: written without any trace of the time, and read again."""

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bevel.checks import in_one_line
from bevel.errors import FixArgumentsError, RestoreCheckpointError
from bevel.shipping.file_digests import ORBAX, SAFETENSORS
from bevel.training.named_arrays import arranged

# One entry only: several would be written in random order.
METADATA = {"privacy_statement": "privacy.json"}
# Files of Orbax that contain the time or the path, and that it does not need to restore.
ORBAX_TIMES = ("_CHECKPOINT_METADATA", "commit_success.txt")
# Names of safetensors for dtypes that NumPy alone does not have.
EXTENDED = {
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}
PLAIN = {
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    "BOOL": "bool",
    "C64": "complex64",
}


def write_model(params: Mapping[str, np.ndarray], folder: Path, model_format: str) -> None:
    """Writes arrays by name to `folder`. The same arrays always give the same bytes."""
    if model_format == "safetensors":
        _write_safetensors(params, folder / SAFETENSORS)
    else:
        _write_orbax(params, folder / ORBAX)


def read_model(folder: Path, model_format: str) -> dict[str, np.ndarray]:
    """Reads what `write_model` wrote, in the order of the names."""
    path = folder / (SAFETENSORS if model_format == "safetensors" else ORBAX)
    try:
        found = _read_safetensors(path) if path.name == SAFETENSORS else _read_orbax(path)
        return dict(sorted(found.items()))
    except ImportError:
        raise
    except Exception as error:
        raise RestoreCheckpointError(
            f"{path} cannot be read ({in_one_line(error)}). Export the model again."
        ) from error


def _write_safetensors(params: Mapping[str, np.ndarray], path: Path) -> None:
    from safetensors.numpy import save_file

    names = {*PLAIN.values(), *EXTENDED.values()}
    for name, x in params.items():
        if name == "__metadata__" or x.dtype.name not in names:
            raise FixArgumentsError(
                f"safetensors cannot hold the parameter {name!r} of dtype {x.dtype.name}. Pass "
                "format='orbax'."
            )
    # save_file reads memory as it lies, so a transposed array would be written in wrong order.
    save_file({name: np.asarray(x, order="C") for name, x in params.items()}, path, METADATA)
    path.chmod(0o644)  # like the other files, which are for everyone


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    import ml_dtypes
    from safetensors import deserialize

    def dtype_of(name: str) -> np.dtype[Any]:
        return np.dtype(getattr(ml_dtypes, EXTENDED[name]) if name in EXTENDED else PLAIN[name])

    found = deserialize(path.read_bytes())
    return {
        name: np.frombuffer(x["data"], dtype_of(x["dtype"])).reshape(x["shape"])
        for name, x in found
    }


def _write_orbax(params: Mapping[str, np.ndarray], path: Path) -> None:
    import orbax.checkpoint as ocp

    from bevel.training.array_files import array_handler

    tree = arranged(params, None)  # raises if an array would be inside another
    dotted = [name.replace("/", ".") for name in params]
    twice = [name for name, text in zip(params, dotted, strict=True) if dotted.count(text) > 1]
    if twice:
        raise FixArgumentsError(
            f"Orbax would write the parameters {', '.join(twice)} to one file. Pass "
            "format='safetensors'."
        )
    with _quiet(), ocp.Checkpointer(array_handler()) as writer:
        writer.save(path.absolute(), args=ocp.args.PyTreeSave(tree))
    for name in ORBAX_TIMES:
        (path / name).unlink(missing_ok=True)


def _read_orbax(path: Path) -> dict[str, np.ndarray]:
    import jax
    import orbax.checkpoint as ocp

    from bevel.training.array_files import array_handler
    from bevel.training.state import path_text

    with _quiet(), ocp.Checkpointer(array_handler()) as reader:
        tree = reader.restore(path.absolute())
    return {path_text(p): np.asarray(x) for p, x in jax.tree_util.tree_leaves_with_path(tree)}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the notes of Orbax on its own files."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def without_times(folder: Path, when: int) -> None:
    """Sets all files and folders to one fixed time."""
    for parent, _, files in os.walk(folder, topdown=False):
        for name in (*files, "."):
            os.utime(os.path.join(parent, name), (when, when))
