"""A file that one process at a time appends to. The data is on disk when `append` returns."""

import contextlib
import fcntl
import os
from pathlib import Path

from bevel.accounting.ledger.durable_files import (
    create_file,
    sync,
    sync_folder,
    write_all,
    write_new,
)
from bevel.errors import BevelError, FixArgumentsError, RestoreLedgerError
from bevel.file_errors import explain_file_errors


class LockedFile:
    """An open file and its lock, which the operating system releases when the process ends.

    POSIX only. The lock is advisory: it only excludes programs that also ask for it, on one machine
    or on network file systems that support it.
    """

    def __init__(self, path: str | os.PathLike[str], *, wait: bool = False) -> None:
        """Opens the existing file `path` without changing it.

        If another process has it open, raises, or waits for that process if `wait` is True.
        """
        self.path = Path(path)
        self._descriptor = -1
        try:
            self._open_and_lock(wait)
            while not self._is_at_path():  # the run before this one has compacted it
                self.close()
                self._open_and_lock(wait)
            self._owner = os.getpid()
            self._size = os.fstat(self._descriptor).st_size
            # A process that was killed may have written lines that are not on disk yet.
            sync(self._descriptor)
            sync_folder(self.path)
        except BaseException:
            self.close()
            raise
        self._last_write_succeeded = True

    def _open_and_lock(self, wait: bool) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
        try:
            self._descriptor = os.open(self.path, flags)
        except FileNotFoundError:
            raise FixArgumentsError(f"{self.path} does not exist: check the path.") from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise FixArgumentsError(
                f"{self.path} is locked by another run, and only one at a time may write to a "
                "ledger. Wait for it to end, or open with wait=True."
            ) from None

    @property
    def mode(self) -> int:
        return os.fstat(self._descriptor).st_mode & 0o777

    def read(self) -> bytes:
        parts, offset = [], 0
        while part := os.pread(self._descriptor, 1 << 20, offset):
            parts.append(part)
            offset += len(part)
        return b"".join(parts)

    def cut(self, count: int) -> None:
        """Removes the last `count` bytes."""
        self._size -= count
        self._cut_to(self._size)

    def _cut_to(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)
        sync(self._descriptor)

    def append(self, data: bytes) -> None:
        """Appends bytes, which are on disk when this returns.

        If it raises, the bytes are removed again. If that fails too, some or all of them may be in
        the file, and nothing more can be appended until the file is opened again.
        """
        if not self._last_write_succeeded:
            raise RestoreLedgerError(f"an earlier write to {self.path} failed. Open it again.")
        if os.getpid() != self._owner:
            raise FixArgumentsError(
                f"{self.path} was opened by another process. Open it in this process."
            )
        self._check_not_replaced()
        if os.fstat(self._descriptor).st_size != self._size:
            raise RestoreLedgerError(
                f"{self.path} was changed by another program while this run had it open. Restore "
                "it from a copy."
            )
        self._last_write_succeeded = False
        with explain_file_errors(self.path):
            try:
                write_all(self._descriptor, data)
                sync(self._descriptor)
            except OSError:
                # After a failed sync, it is unknown what is on disk, and a second sync would not
                # report it again. So remove what was written, if the file system lets us.
                with contextlib.suppress(OSError):
                    self._cut_to(self._size)
                    self._last_write_succeeded = True
                raise
        self._size += len(data)
        self._last_write_succeeded = True

    def replace(self, data: bytes) -> None:
        """Replaces the content atomically: readers see the old or the new bytes. Keeps the lock."""
        self._check_not_replaced()
        target = self.path.resolve()
        new = target.with_name(f"{target.name}.new")
        new.unlink(missing_ok=True)  # left behind by a process that was killed
        write_new(new, data, self.mode)
        descriptor = os.open(new, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # before anyone can open it under its name
            os.replace(new, target)
        except BaseException:
            os.close(descriptor)
            raise
        before, self._descriptor, self._size = self._descriptor, descriptor, len(data)
        os.close(before)
        sync_folder(target)

    def _is_at_path(self) -> bool:
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._descriptor))
        except FileNotFoundError:
            return False

    def _check_not_replaced(self) -> None:
        """Raises if the path no longer leads to the open file. A removed file is put back first."""
        if self._is_at_path():
            return
        advice = "Put it back and open it again."
        if os.fstat(self._descriptor).st_nlink == 0:  # nobody else has its content
            with contextlib.suppress(BevelError, OSError):
                if create_file(self.path, self.read()):
                    advice = "Its content was put back: open it again."
        raise RestoreLedgerError(
            f"{self.path} was moved, removed or replaced while it was open, so new charges "
            f"would be lost. {advice}"
        )

    def close(self) -> None:
        descriptor, self._descriptor, self._last_write_succeeded = self._descriptor, -1, False
        if descriptor >= 0:
            os.close(descriptor)
