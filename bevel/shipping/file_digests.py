"""The digests of exported files, which show whether a model is the one that was stated."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

SAFETENSORS, ORBAX = "model.safetensors", "model"  # a file, and a folder


def digests_of(path: Path) -> dict[str, str]:
    """The SHA-256 of every file of a model, by the name that a statement has for it.

    `path` is the folder of an export, or its file or folder of parameters, whatever its name is.
    Files are read in pieces.
    """
    if path.is_file():
        return {SAFETENSORS: _digest_of(path)}
    if (path / SAFETENSORS).is_file():
        return digests_of(path / SAFETENSORS)
    folder = path / ORBAX if (path / ORBAX).is_dir() else path
    files = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    return {f"{ORBAX}/{name}": _digest_of(folder / name) for name in files}


def difference(stated: Mapping[str, str], found: Mapping[str, str]) -> str:
    """Says in which file a model differs from the stated one. Empty if they are equal."""
    for words, names in (
        ("missing", stated.keys() - found.keys()),
        ("not part of the model", found.keys() - stated.keys()),
        ("another file", {n for n in stated.keys() & found.keys() if stated[n] != found[n]}),
    ):
        if names:
            return f"{min(names)!r} is {words}"
    return ""


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
