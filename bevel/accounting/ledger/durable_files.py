"""Files that are on disk, whole, when the call that writes them returns."""

import errno
import fcntl
import os
import secrets
from pathlib import Path

from bevel.errors import FixArgumentsError

NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS)


def begin_file(path: Path, data: bytes) -> bool:
    """Makes a file that only its owner may read; False, and nothing is done, if there is one.

    It appears with all its bytes or not at all, whatever happens to the process or the machine, and
    only one of several processes makes it. A process that is killed meanwhile may leave a file
    `.NAME.begin-...` behind, which does no harm.
    """
    target = path.resolve()  # a link to where the file is to be
    if not target.parent.is_dir():
        raise FixArgumentsError(f"{path}: there is no such folder. Make it first.")
    if target.exists():
        return False
    whole = target.with_name(f".{target.name}.begin-{secrets.token_hex(8)}")
    try:
        write_new(whole, data)
        os.link(whole, target)  # unlike a rename, it never replaces a file
        sync_folder(target)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno in NO_LINKS:
            raise FixArgumentsError(
                f"{path}: this file system has no hard links ({error}), so a file cannot be begun "
                "safely. Give a path on a local disk or another POSIX file system."
            ) from error
        raise
    finally:
        whole.unlink(missing_ok=True)
    return True


def replace_file(path: Path, data: bytes) -> None:
    """Puts new content in the place of a file: there is the old or the new, whole, at any time."""
    target = path.resolve()
    new = target.with_name(f"{target.name}.new")
    new.unlink(missing_ok=True)  # of a process that was killed
    write_new(new, data)
    os.replace(new, target)
    sync_folder(target)


def write_new(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Writes a file that must not be there yet. Its name is on disk once `sync_folder` was called.

    Raises `FileExistsError` if there is one.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(path, flags, mode)
    try:
        write_all(descriptor, data)
        sync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync(descriptor: int) -> None:
    full = getattr(fcntl, "F_FULLFSYNC", None)  # on macOS fsync leaves data in the drive's cache
    if full is None:
        os.fsync(descriptor)
    else:
        fcntl.fcntl(descriptor, full)


def sync_folder(path: Path) -> None:
    """The name of a new file is on disk only once its folder is."""
    descriptor = os.open(path.resolve().parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
