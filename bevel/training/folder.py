"""The two halves of a run folder, and the names of its files.

    RUN/released/            may be shown to anyone
      run.json               what ran: plan, settings, versions, mesh, shardings
      ledger.jsonl           what was spent: bevel.accounting.Ledger (you can choose another path)
      checkpoints/STEP/      parameters, optimizer state, average, step, adaptive clip norm
      metrics.jsonl          epsilon and the results of `evaluate`, at each checkpoint
      report.html            the public report
    RUN/private/             only for the owner: mode 0700
      secrets.json           noise key and sampling seed
      identity.json          settings and digests of data, model and programs, to compare on resume
      run.json               when the run started and finished, and how long it took
      checkpoints/STEP/      noise state, checksums of both halves, commitment to the key
      sampler_states/        what a sampler remembers of earlier steps, if it depends on them
      releases.jsonl         for each release: keyed digests of its rows, checksums of the state
      ledger_head            hash of the ledger's last line, as this run left it
      raw.jsonl              loss, norms, clipped fraction and batch size of every step
      audit.json             what an audit of this run found, if it was an audited run
      tensorboard/           events, which contain the time
      staging/, damaged/     checkpoints that are not released yet, or could not be read
      report.html            the owner's report
      lock                   held while the run is active

Everything in released/ is a function of the noised outputs and of public settings. Any value that
depends on the data in another way, or on the clock, is private.
"""

import contextlib
import dataclasses
import errno
import fcntl
import functools
import json
import os
import stat
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from bevel.accounting.ledger.durable_files import name_new, sync_folder, write_new
from bevel.errors import FixArgumentsError
from bevel.file_errors import explain_file_errors, file_error

P = ParamSpec("P")
R = TypeVar("R")
RELEASED, PRIVATE = "released", "private"
RUN, REPORT, CHECKPOINTS = "run.json", "report.html", "checkpoints"
LEDGER, METRICS = "ledger.jsonl", "metrics.jsonl"
SECRETS, IDENTITY, RELEASES, RAW = "secrets.json", "identity.json", "releases.jsonl", "raw.jsonl"
TENSORBOARD, STAGING, DAMAGED = "tensorboard", "staging", "damaged"
LEDGER_HEAD, LOCK, SAMPLER_STATES = "ledger_head", "lock", "sampler_states"
AUDIT = "audit.json"
WRITTEN_ATOMICALLY = (RUN, REPORT, LEDGER, METRICS, SECRETS, IDENTITY, LEDGER_HEAD, AUDIT)
# Inside a checkpoint: its metadata, and, while it is staged, the record of its release.
CHECKPOINT, RELEASE = "checkpoint.json", "release.json"
# Files at the top of a run folder from before it had two halves.
OLD_LAYOUT = (RUN, SECRETS, CHECKPOINTS)
# The modification time of released files: 1980-01-01, the earliest that a zip archive can store.
NO_TIME = 315_532_800


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """The folder of a run and its two halves."""

    root: Path

    @property
    def released(self) -> Path:
        return self.root / RELEASED

    @property
    def private(self) -> Path:
        return self.root / PRIVATE

    def create(self) -> None:
        """Creates both halves. Warns about a private half that others can read, and closes it."""
        _check_utf8(self.root.absolute())
        for path in (self.root, self.released):
            if path.exists() and not path.is_dir():
                raise FixArgumentsError(f"{path} is a file. Pass a folder for the run.")
        if self.released.is_symlink():
            raise FixArgumentsError(
                f"{self.released} is a symbolic link, but both halves must be folders inside the "
                "run folder, so that they cannot be mixed up. Link the run folder instead."
            )
        check_not_older(self.root)
        self.released.mkdir(parents=True, exist_ok=True)
        make_private_folder(self.private)

    def open(self) -> int:
        """Creates both halves and locks the folder."""
        with explain_file_errors(self.root):
            self.create()
            return self.lock()

    def lock(self) -> int:
        """Locks the folder until the returned descriptor is closed or the process ends."""
        descriptor = open_private(self.private / LOCK, os.O_RDWR | os.O_CREAT)
        try:
            with explain_file_errors(self.private / LOCK, but=(BlockingIOError,)):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise FixArgumentsError(
                f"{self.root} is in use by another run, and two runs would add the same noise. "
                "Wait until it ends, or choose another folder."
            ) from None
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def unlock(self, descriptor: int) -> None:
        """Unlocks the folder. Does nothing if `descriptor` is -1."""
        if descriptor >= 0:
            with explain_file_errors(self.private / LOCK):
                os.close(descriptor)

    def remove_leftovers(self) -> None:
        """Removes temporary files of killed processes. In released/, they would reveal the kill.

        Torn lines of the ledger are kept in private/.
        """
        with explain_file_errors(self.released):
            temporary = tuple(f".{name}." for name in WRITTEN_ATOMICALLY)
            for path in sorted([*self.released.iterdir(), *self.private.iterdir()]):
                if path.name.startswith(temporary):
                    path.unlink()
                elif path.parent == self.released and path.name.startswith(f"{LEDGER}.torn-"):
                    names = (self.private / f"{LEDGER}.torn-{k}" for k in range(1, 10**6))
                    path.rename(next(name for name in names if not name.exists()))

    def reset_times(self) -> None:
        """Sets released files to a fixed time, because when a step ended can depend on the data.

        Files of checkpoints already have this time when they are published. Another process, such
        as one that writes a report, may remove its temporary file meanwhile.
        """
        with explain_file_errors(self.released):
            if self.released.is_dir():
                for path in (*self.released.iterdir(), self.released):
                    with contextlib.suppress(FileNotFoundError):
                        os.utime(path, (NO_TIME, NO_TIME), follow_symlinks=False)


def explained(method: Callable[P, R]) -> Callable[P, R]:
    """Decorates a method of an object with a `folder`, a `RunFolder`: explains errors of files."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with explain_file_errors(args[0].folder.root):  # type: ignore[attr-defined]
            return method(*args, **kwargs)

    return call


def check_not_older(root: Path) -> None:
    """Raises if the folder is from before runs had two halves."""
    found = [name for name in OLD_LAYOUT if (root / name).exists()]
    if not found or (root / RELEASED).exists():
        return
    ledger = LEDGER
    with contextlib.suppress(OSError, ValueError, AttributeError):
        ledger = json.loads((root / RUN).read_text()).get("ledger") or LEDGER
    raise FixArgumentsError(
        f"{root} contains a run of an earlier version of bevel ({', '.join(found)}). Its "
        "checkpoints contain the noise, so do not share or resume them. Start a new run in another "
        f"folder with RunOptions(ledger={str(root / ledger)!r}), which counts what this run spent."
    )


def _check_utf8(path: Path) -> None:
    """Raises for a path that Orbax cannot open."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise FixArgumentsError(
            f"the path {str(path)!r} is not in UTF-8, which checkpoints need. Pass another folder."
        ) from None


def make_private_folder(path: Path) -> None:
    """Creates a folder with mode 0700, whatever the umask."""
    with explain_file_errors(path):
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
            path.chmod(0o700)
            return
        found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise FixArgumentsError(
            f"{path} is {'a symbolic link' if path.is_symlink() else 'not a folder'}. Private "
            "files must be in a folder of mode 0700 inside the run folder. Move them there."
        )
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        with explain_file_errors(path):
            path.chmod(0o700)
        warnings.warn(
            f"{path} had mode {mode:04o}, so others could read it; it now has mode 0700. If anyone "
            f"may have read {SECRETS}, start a new run: anyone who knows the noise key can remove "
            "the noise.",
            stacklevel=4,
        )


def open_private(path: Path, flags: int) -> int:
    """Opens a file with mode 0600, whatever the umask. Does not follow symbolic links."""
    flags |= os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise file_error(error, path) from error
        raise FixArgumentsError(
            f"{path} is a symbolic link, so data would be written outside the private folder. "
            "Remove the link."
        ) from None
    try:
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        if mode & 0o077:
            warnings.warn(f"{path} had mode {mode:04o}; it now has mode 0600.", stacklevel=3)
        os.fchmod(descriptor, 0o600)
    except BaseException as error:
        os.close(descriptor)
        if not isinstance(error, OSError):
            raise
        raise file_error(error, path) from error
    return descriptor


def write_atomically(path: Path, text: str, *, private: bool, replace: bool = True) -> None:
    """Writes a file atomically. It is on disk when this returns.

    Without `replace`, raises `FileExistsError` if there is such a file.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with explain_file_errors(path, but=() if replace else (FileExistsError,)):
        temporary.unlink(missing_ok=True)
        try:
            # A path that is not in UTF-8 has characters that cannot be encoded.
            data = text.encode(errors="backslashreplace")
            write_new(temporary, data, 0o600 if private else 0o644)
            if private:
                temporary.chmod(0o600)  # whatever the umask
            if replace:
                temporary.replace(path)
            else:
                name_new(temporary, path)
        finally:
            with contextlib.suppress(OSError):  # it is harmless, and must not hide an error
                temporary.unlink(missing_ok=True)
        sync_folder(path)
