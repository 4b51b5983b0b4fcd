"""The arrays of .npz and .npy files, mapped from the file where that is possible.

Pickled objects are never loaded, because loading them runs code from the file.
"""

import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np

from bevel.checks import in_one_line
from bevel.errors import FixDataError

LOCAL_HEADER = 30  # bytes of a zip member's own header, without its name and extra field


def arrays_in(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, an .npy file or a folder of .npy files, by name.

    Arrays are memory-mapped: only the rows that are read use memory. The members of a compressed
    archive (`np.savez_compressed`) cannot be mapped and are read into memory.
    """
    if path.is_dir():
        return {file.stem: _npy(file) for file in sorted(path.glob("*.npy"))}
    if path.suffix == ".npy":
        return {path.stem: _npy(path)}
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as file:
            members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
            return {info.filename[:-4]: _member(archive, info, file, path) for info in members}
    except (zipfile.BadZipFile, EOFError, zipfile.LargeZipFile) as error:
        raise FixDataError(
            f"{path} cannot be read as an .npz file: {in_one_line(error)}. Write it with "
            "np.savez(path, x=x, y=y)."
        ) from None


def _npy(path: Path) -> np.ndarray:
    try:
        with path.open("rb") as file:
            shape, order, dtype = _header(file, path, path.stem)
            return _mapped(path, file.tell(), shape, order, dtype)
    except ValueError as error:
        if isinstance(error, FixDataError):
            raise
        raise FixDataError(f"{path} is not an .npy file: {in_one_line(error)}.") from None


def _member(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, file: IO[bytes], path: Path
) -> np.ndarray:
    name = info.filename[:-4]
    try:
        if info.compress_type != zipfile.ZIP_STORED:
            with archive.open(info) as member:
                _header(member, path, name)
            with archive.open(info) as member:
                return np.lib.format.read_array(member, allow_pickle=False)
        file.seek(info.header_offset)
        header = file.read(LOCAL_HEADER)
        lengths = (int.from_bytes(header[k : k + 2], "little") for k in (26, 28))
        file.seek(info.header_offset + LOCAL_HEADER + sum(lengths))
        shape, order, dtype = _header(file, path, name)
        return _mapped(path, file.tell(), shape, order, dtype)
    except ValueError as error:
        if isinstance(error, FixDataError):
            raise
        raise FixDataError(f"{path}: array {name!r} is damaged: {in_one_line(error)}.") from None


def _header(file: Any, path: Path, name: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    """The shape, order (True for Fortran) and dtype of an array. Raises for Python objects."""
    version = np.lib.format.read_magic(file)
    read: Any = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read is None:
        raise FixDataError(f"{path}: array {name!r} has the unknown version {version}.")
    shape, order, dtype = read(file)
    if dtype.hasobject:
        raise FixDataError(
            f"{path}: array {name!r} holds Python objects, which bevel does not load, because a "
            "pickle can run any code. Store numbers or text of one shape, as in "
            "np.savez(path, x=np.asarray(x, np.float32))."
        )
    return shape, order, dtype


def _mapped(
    path: Path, offset: int, shape: tuple[int, ...], order: bool, dtype: np.dtype
) -> np.ndarray:
    """An array that is read from its file when it is used."""
    if 0 in shape:
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype, "r", offset, shape, "F" if order else "C")
