"""Checkpoints on Orbax: a state and what it belongs to, saved together or not at all.

    checkpoints/STEP/   state: the arrays, as they are sharded; meta: one JSON object

Orbax writes to a temporary folder and gives it its name when all of it is there, so a folder with a
number is a whole checkpoint. That name is the moment of release: a temporary folder is removed
before its steps are run again. Keys and seeds are not in it, nor are frozen parameters.
"""

import contextlib
import dataclasses
import errno
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from bevel.errors import FreeSpaceError, RestoreCheckpointError
from bevel.training.agreement import any_of, together
from bevel.training.digest import digest
from bevel.training.state import path_text

PyTree = Any
FOLDER, DAMAGED = "checkpoints", "damaged"
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
FULL_TEXTS = ("no space left", "disk quota", "file too large", "resource_exhausted")


@dataclasses.dataclass(frozen=True)
class Meta:
    """What a state belongs to.

    Attributes:
      step: steps that it has taken.
      attempt: of the ledger, under which it was released.
      plan: the plan's fingerprint.
      key: commitment to the run's secrets.
      ledger: head of the ledger, in which all its steps were charged.
      exactly: what must be the same for a step to give the same bits again: program, versions,
        mesh, data.
      digest: checksums of the arrays.
      frozen: checksums of the frozen parameters.
    """

    step: int
    attempt: int
    plan: str
    key: str
    ledger: str
    exactly: dict[str, Any]
    digest: list[str] = dataclasses.field(default_factory=list)
    frozen: list[str] = dataclasses.field(default_factory=list)


class Checkpoints:
    """The checkpoints of a run. Every process of a run has its own of these, on one folder.

    Args:
      folder: of the run.
      keep: so many of the newest are kept.
      keep_period: and every one whose step is a multiple of this.
    """

    def __init__(self, folder: Path, *, keep: int = 3, keep_period: int | None = None) -> None:
        self.folder = folder.absolute() / FOLDER
        self.folder.mkdir(parents=True, exist_ok=True)
        self._damaged = folder.absolute() / DAMAGED
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep,
            keep_period=keep_period,
            cleanup_tmp_directories=True,
            enable_async_checkpointing=True,
        )
        self._manager = ocp.CheckpointManager(self.folder, options=options)

    def steps(self) -> list[int]:
        """Steps of the whole checkpoints, newest first."""
        self._manager.reload()
        return sorted(self._manager.all_steps(), reverse=True)

    def damaged(self, attempt: int) -> list[int]:
        """Steps of checkpoints that an attempt released and that could not be read since."""
        if not self._damaged.is_dir():
            return []
        names = (path.name.split("-") for path in self._damaged.iterdir())
        return [int(step) for step, number, *_ in names if int(number) == attempt]

    def save(self, state: PyTree, meta: Meta) -> None:
        """Begins to save, and returns when the arrays may be used and given away again.

        The checkpoint is there, and released, when `wait` returns.
        """
        named = by_name(state)
        meta = dataclasses.replace(meta, digest=digest(named))
        args = ocp.args.Composite(
            state=ocp.args.StandardSave(detached(named)),
            meta=ocp.args.JsonSave(dataclasses.asdict(meta)),
        )
        with full_disk_explained(self.folder):
            self._manager.save(meta.step, args=args, force=True)

    def wait(self) -> None:
        """Waits until what `save` began is on disk under its name. Raises if it failed."""
        with full_disk_explained(self.folder):
            self._manager.wait_until_finished()
            self._manager.check_for_errors()

    def is_saving(self) -> bool:
        """Whether what `save` began is not on disk yet."""
        return self._manager.is_saving_in_progress()

    def restore(self, step: int, like: PyTree) -> tuple[PyTree, Meta]:
        """The state of a checkpoint, in the place of `like`: on its mesh, whatever it was saved on.

        Raises `RestoreCheckpointError` if it cannot be read, or is not what was saved.
        """
        named = by_name(like)
        shapes = {
            name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
            for name, x in named.items()
        }
        args = ocp.args.Composite(
            state=ocp.args.StandardRestore(shapes), meta=ocp.args.JsonRestore()
        )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that the mesh is another one is no news
                restored = self._manager.restore(step, args=args)
            meta = Meta(**restored.meta)
            arrays = [restored.state[name] for name in named]
            found = digest(dict(zip(named, arrays, strict=True)))
        except Exception as error:
            raise RestoreCheckpointError(
                f"checkpoint {self.folder / str(step)} cannot be read "
                f"({type(error).__name__}: {str(error)[:300]})"
            ) from error
        if (meta.step, meta.digest) != (step, found):
            raise RestoreCheckpointError(
                f"checkpoint {self.folder / str(step)} is damaged: its arrays do not have the "
                "checksums that were saved with them"
            )
        return jax.tree.unflatten(jax.tree.structure(like), arrays), meta

    def newest_good(
        self, like: PyTree, attempt: int, check: Callable[[Meta], None]
    ) -> tuple[PyTree, Meta] | None:
        """The newest checkpoint that can be read and passes `check`; None if there never was any.

        The others are moved to `damaged/`, with a warning. If none is left, that is an error: a run
        that has released something never begins afresh by itself.
        """
        failures = []
        for step in self.steps():
            found, failure = None, ""
            try:
                found = self.restore(step, like)
                check(found[1])
            except RestoreCheckpointError as error:
                failure = str(error)
            if any_of(bool(failure)):  # one state for all processes
                failures.append(failure or f"checkpoint {step} fails in another process")
                continue
            for failure in failures:
                warnings.warn(f"{failure}. Going on from step {step} instead.", stacklevel=3)
            for bad in self.steps():
                if bad > step:
                    self._set_aside(bad, attempt)
            return found
        if failures or self.damaged(attempt):
            raise RestoreCheckpointError(
                f"no checkpoint of {self.folder} is good: {'; '.join(failures)}. Restore one from "
                "a copy; the run does not begin afresh, for what it released is spent."
            )
        return None

    def _set_aside(self, step: int, attempt: int) -> None:
        if jax.process_index() == 0:
            self._damaged.mkdir(exist_ok=True)
            names = (self._damaged / f"{step}-{attempt}-{k}" for k in range(10**6))
            (self.folder / str(step)).rename(next(name for name in names if not name.exists()))
        together("bevel: damaged checkpoint set aside")
        self._manager.reload()

    def close(self) -> None:
        self._manager.close()


def by_name(tree: PyTree) -> dict[str, jax.Array]:
    """The leaves of a tree, by numbers and paths: names that no two leaves share."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {
        f"{number:05d}.{path_text(path).replace('/', '.')}": leaf
        for number, (path, leaf) in enumerate(leaves)
    }


def detached(named: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Arrays whose memory nobody else gives away while they are written.

    On CPU what Orbax holds while it writes may be the array's own memory, which the next step takes
    over; elsewhere it is a copy on the host.
    """
    if jax.default_backend() != "cpu":
        return named
    return jax.tree.map(lambda x: x.copy(), named)


@contextlib.contextmanager
def full_disk_explained(where: Path) -> Iterator[None]:
    """Errors of a full disk, in words. What was written in part is not relied on."""
    try:
        yield
    except Exception as error:
        if not is_full(error):
            raise
        raise FreeSpaceError(
            f"{where} could not be written: the disk is full ({error}). Nothing was released that "
            "is not saved and charged. Free some space and start again: the run goes on from its "
            "last whole checkpoint."
        ) from error


def is_full(error: BaseException | None) -> bool:
    """Whether an error, or one that caused it, says that there is no room."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return True
        if any(text in str(error).lower() for text in FULL_TEXTS):
            return True
        error = error.__cause__ or error.__context__
    return False
