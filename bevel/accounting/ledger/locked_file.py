"""A file that one process at a time appends to, and that is on disk when `append` returns."""

import fcntl
import os
from pathlib import Path

from bevel.accounting.ledger.durable_files import sync, sync_folder, write_all
from bevel.errors import FixArgumentsError, RestoreLedgerError


class LockedFile:
    """An open file and its lock, which the operating system gives back when the process ends.

    POSIX only. The lock is advisory: it holds between programs that ask for it, on one machine and
    on network file systems that pass it on.
    """

    def __init__(self, path: str | os.PathLike[str], *, wait: bool = False) -> None:
        """Opens `path`, a file that is there (`begin_file`), and changes nothing in it.

        Raises if another process has it, or waits for that one to end.
        """
        self.path = Path(path)
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
        try:
            self._descriptor = os.open(self.path, flags)
        except FileNotFoundError:
            raise FixArgumentsError(f"{self.path}: there is no such file.") from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(self._descriptor)
            raise FixArgumentsError(
                f"{self.path} is held by another run: runs on one ledger go one after another, so "
                "that none spends what another has spent. Wait for it to end, or open with "
                "wait=True."
            ) from None
        self._owner = os.getpid()
        self._size = os.fstat(self._descriptor).st_size
        self._sound = True
        try:
            self._check_in_place()
            sync_folder(self.path)
        except BaseException:
            self.close()
            raise

    def read(self) -> bytes:
        parts, at = [], 0
        while part := os.pread(self._descriptor, 1 << 20, at):
            parts.append(part)
            at += len(part)
        return b"".join(parts)

    def cut(self, count: int) -> None:
        """Drops the last `count` bytes."""
        self._size -= count
        os.ftruncate(self._descriptor, self._size)
        sync(self._descriptor)

    def append(self, data: bytes) -> None:
        """Adds bytes at the end; they are on disk when this returns.

        If it raises, they may be there in part or as a whole: nothing more can be appended until
        the file is opened again.
        """
        if not self._sound:
            raise RestoreLedgerError(f"{self.path}: an earlier write failed. Open it again.")
        if os.getpid() != self._owner:
            raise FixArgumentsError(f"{self.path} was opened by another process: open it here.")
        self._check_in_place()
        if os.fstat(self._descriptor).st_size != self._size:
            raise RestoreLedgerError(
                f"{self.path} was changed by another program while this run held it. Restore it "
                "from a copy."
            )
        self._sound = False
        write_all(self._descriptor, data)
        sync(self._descriptor)
        self._size += len(data)
        self._sound = True

    def _check_in_place(self) -> None:
        """Raises if the path no longer leads to the file that is open."""
        try:
            same = os.path.samestat(os.stat(self.path), os.fstat(self._descriptor))
        except FileNotFoundError:
            same = False
        if not same:
            raise RestoreLedgerError(
                f"{self.path} was moved, removed or replaced while it was open: what is written "
                "now would be lost. Put it back and open it again."
            )

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor, self._sound = -1, False
