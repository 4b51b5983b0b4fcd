"""The two halves of a run's folder. Every file of a run belongs to one of them.

    RUN/released/            may be shown to anyone
      run.json               what ran: plan, settings, versions, mesh, where arrays live
      ledger.jsonl           what was spent: bevel.accounting.Ledger (its path can be set)
      checkpoints/STEP/      parameters, optimizer state, average, step, adaptive clip norm
      metrics.jsonl          epsilon and what `evaluate` returned, at each checkpoint
      report.html            the public report
    RUN/private/             the owner's: mode 0700
      secrets.json           noise key and sampling seed
      identity.json          what the run is: settings, digests of data, model and programs
      run.json               when it began and ended, and how long it took
      checkpoints/STEP/      noise state, checksums of both halves, commitment to the key
      releases.jsonl         what each release was made of: keyed digests of its rows, results
      ledger_head            hash of the ledger's last line, as this run left it
      raw.jsonl              loss, norms, clipped fraction, batch sizes of every step
      tensorboard/           events, which carry the time
      staging/, damaged/     checkpoints that are not released yet, or could not be read
      report.html            the owner's report

What is released is a function of the noised outputs and of public settings. A value that depends on
the data in any other way, or on the clock, is private.
"""

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import stat
import warnings
from pathlib import Path

from bevel.errors import FixArgumentsError

RELEASED, PRIVATE = "released", "private"
RUN, REPORT, CHECKPOINTS = "run.json", "report.html", "checkpoints"
LEDGER, METRICS = "ledger.jsonl", "metrics.jsonl"
SECRETS, IDENTITY, RELEASES, RAW = "secrets.json", "identity.json", "releases.jsonl", "raw.jsonl"
EVENTS, STAGING, DAMAGED = "tensorboard", "staging", "damaged"
HEAD, LOCK = "ledger_head", "lock"
# Files of runs before the folder had two halves.
OLDER = (RUN, SECRETS, CHECKPOINTS)
# Files that are released carry this time (1980-01-01, the first that a zip archive can hold).
NO_TIME = 315_532_800


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """The folder of a run, and its halves."""

    root: Path

    @property
    def released(self) -> Path:
        return self.root / RELEASED

    @property
    def private(self) -> Path:
        return self.root / PRIVATE

    @property
    def begun(self) -> bool:
        """Whether a run began here."""
        return (self.private / SECRETS).exists() or (self.released / RUN).exists()

    def create(self) -> None:
        """Makes both halves. A private half that others can read is closed, with a warning."""
        for path in (self.root, self.released):
            if path.exists() and not path.is_dir():
                raise FixArgumentsError(f"{path} is a file: give a folder for the run.")
        if self.released.is_symlink():
            raise FixArgumentsError(
                f"{self.released} is a link: both halves are folders in the folder of the run, so "
                "that they cannot be mixed. Link to the folder of the run instead."
            )
        check_not_older(self.root)
        self.released.mkdir(parents=True, exist_ok=True)
        closed_folder(self.private)

    def lock(self) -> int:
        """Holds the folder for one run, until the descriptor is closed or the process ends."""
        descriptor = open_private(self.private / LOCK, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise FixArgumentsError(
                f"{self.root} is held by another run: two would use the same noise. Wait for it to "
                "end, or take another folder."
            ) from None
        return descriptor

    def tidy(self) -> None:
        """Takes out of the released half what a killed process left there: it shows the kill."""
        for path in sorted(self.released.iterdir()):
            if path.name.startswith(tuple(f".{name}." for name in (RUN, REPORT, LEDGER))):
                path.unlink()
            elif path.name.startswith(f"{LEDGER}.torn-"):
                names = (self.private / f"{LEDGER}.torn-{k}" for k in range(1, 10**6))
                path.rename(next(name for name in names if not name.exists()))

    def forget_times(self) -> None:
        """Takes the time off released files: when a step ended can depend on the data.

        Those of checkpoints have none when they are published.
        """
        if self.released.is_dir():
            for path in (*self.released.iterdir(), self.released):
                os.utime(path, (NO_TIME, NO_TIME), follow_symlinks=False)


def check_not_older(root: Path) -> None:
    """Raises for a folder from before runs had two halves."""
    found = [name for name in OLDER if (root / name).exists()]
    if not found or (root / RELEASED).exists():
        return
    ledger = LEDGER
    with contextlib.suppress(OSError, ValueError, AttributeError):
        ledger = json.loads((root / RUN).read_text()).get("ledger") or LEDGER
    raise FixArgumentsError(
        f"{root} holds a run of an earlier version of bevel ({', '.join(found)}), whose "
        "checkpoints contain the noise: show them to nobody, and do not go on with it. Begin "
        f"another run in a new folder, with RunOptions(ledger={str(root / ledger)!r}), so that "
        "what this one spent stays counted."
    )


def closed_folder(path: Path) -> None:
    """A folder of mode 0700, whatever the umask."""
    try:
        path.mkdir(mode=0o700)
        path.chmod(0o700)
        return
    except FileExistsError:
        pass
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise FixArgumentsError(
            f"{path} is {'a link' if path.is_symlink() else 'no folder'}: what is private lies in "
            "a folder of mode 0700 inside the folder of the run. Move it there."
        )
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        path.chmod(0o700)
        warnings.warn(
            f"{path} had mode {mode:04o}, so others could look into it; it has 0700 now. If "
            f"someone may have read {SECRETS}, begin another run: whoever knows the noise key can "
            "remove the noise.",
            stacklevel=4,
        )


def open_private(path: Path, flags: int) -> int:
    """Opens a file that only its owner may read: mode 0600, whatever the umask. Follows no link."""
    flags |= os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise FixArgumentsError(
            f"{path} is a link: what is written there would lie outside the private folder. "
            "Remove the link."
        ) from None
    mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
    if mode & 0o077:
        warnings.warn(f"{path} had mode {mode:04o}; it has 0600 now.", stacklevel=3)
    os.fchmod(descriptor, 0o600)
    return descriptor


def write_whole(path: Path, text: str, *, private: bool) -> None:
    """Replaces a file as a whole; it is on disk, with its name, when this returns."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    descriptor = open_private(beside, flags) if private else os.open(beside, flags, 0o644)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """The name of a new file is on disk only once its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
