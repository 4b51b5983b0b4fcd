"""Writes files that are complete and on disk when the call returns."""

import contextlib
import errno
import fcntl
import os
import secrets
from pathlib import Path

from bevel.errors import FixArgumentsError

# What file systems without hard links answer: exFAT, some network and container mounts.
NO_LINKS = {
    errno.EPERM,
    errno.EACCES,
    errno.EINVAL,
    errno.EMLINK,
    errno.EOPNOTSUPP,
    errno.ENOTSUP,
    errno.ENOSYS,
}


def create_file(path: Path, data: bytes) -> bool:
    """Creates a file that only its owner can read. Returns False if the file exists already.

    The file appears with all its bytes or not at all, whatever happens to the process or the
    machine. If several processes try, exactly one creates it. A process that is killed may leave a
    harmless file `.NAME.begin-...` behind.
    """
    target = path.resolve()  # follow symbolic links to where the file will be
    if not target.parent.is_dir():
        raise FixArgumentsError(f"the folder of {path} does not exist. Create it first.")
    if target.exists():
        return False
    temporary = target.with_name(f".{target.name}.begin-{secrets.token_hex(8)}")
    try:
        write_new(temporary, data)
        name_new(temporary, target)
        sync_folder(target)
    except FileExistsError:
        return False
    finally:
        with contextlib.suppress(OSError):  # it is harmless, and must not hide an error
            temporary.unlink(missing_ok=True)
    return True


def name_new(temporary: Path, target: Path) -> None:
    """Gives a file its final name. Raises `FileExistsError` if the name is taken.

    A hard link never replaces a file, unlike a rename. Where there are no hard links, the file is
    renamed while its folder is locked, which excludes other processes that create files in this
    way. `temporary` may or may not be left.
    """
    link = getattr(os, "link", None)  # not every platform has it
    if link is not None:
        try:
            return link(temporary, target)
        except NotImplementedError:
            pass
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
    folder = os.open(target.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        os.rename(temporary, target)
    finally:
        os.close(folder)


def replace_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replaces the content of a file atomically: readers see the old or the new content."""
    target = path.resolve()
    new = target.with_name(f"{target.name}.new")
    new.unlink(missing_ok=True)  # left behind by a process that was killed
    write_new(new, data, mode)
    os.replace(new, target)
    sync_folder(target)


def write_new(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Writes a new file. Raises `FileExistsError` if it exists.

    The content is on disk when this returns. Call `sync_folder` to get the name on disk as well.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(path, flags, mode)
    try:
        write_all(descriptor, data)
        sync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    remaining = memoryview(data)
    while remaining:
        remaining = remaining[os.write(descriptor, remaining) :]


def sync(descriptor: int) -> None:
    full = getattr(fcntl, "F_FULLFSYNC", None)  # on macOS fsync leaves data in the drive's cache
    if full is None:
        os.fsync(descriptor)
    else:
        fcntl.fcntl(descriptor, full)


def sync_folder(path: Path) -> None:
    """Syncs the folder of a file: the name of a new file is on disk only after that."""
    descriptor = os.open(path.resolve().parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Syncs a folder and everything in it."""
    for path in (*folder.rglob("*"), folder):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            sync(descriptor)
        finally:
            os.close(descriptor)
