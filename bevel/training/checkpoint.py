"""Checkpoints in two halves, committed as one.

    released/checkpoints/STEP/   the arrays that may be shown to anyone; checkpoint.json: step, plan
    private/checkpoints/STEP/    the noise state; checkpoint.json: `Meta`

A checkpoint is staged in the private folder, whole, by Orbax. Once its steps are charged it is
published: the private half gets its name first, the released half last, so a released half always
has its private one. One that is never charged shows nothing to anyone: a run that was interrupted
goes on from it. Arrays are written as zarr, one file per shard: Orbax's other container holds
the time of day and random names. Keys and seeds are in neither half, nor are frozen parameters.
"""

import contextlib
import dataclasses
import json
import logging
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp

from bevel.errors import RestoreCheckpointError
from bevel.training.digest import digest
from bevel.training.disk_full import full_disk_explained
from bevel.training.folder import (
    CHECKPOINTS,
    DAMAGED,
    NO_TIME,
    PRIVATE,
    RELEASED,
    STAGING,
    RunFolder,
    closed_folder,
)
from bevel.training.process_agreement import any_of, is_first, together
from bevel.training.releases import made
from bevel.training.state import path_text

PyTree = Any
FILE, RELEASE = "checkpoint.json", "release.json"
# Names the temporary folder that Orbax wrote to, and with it the time.
COMMITTED = "commit_success.txt"


class Halves(NamedTuple):
    """The state of a run, as it is kept: what may be shown, and what may not."""

    released: PyTree
    private: PyTree


@dataclasses.dataclass(frozen=True)
class Meta:
    """What a state belongs to. Private: a digest of a state can depend on the noise.

    Attributes:
      step: steps that it has taken.
      attempt: of the ledger, under which it was released.
      plan: the plan's fingerprint.
      key: commitment to the run's secrets.
      ledger: hash of the ledger's last line before this checkpoint was charged.
      digest: checksums of the arrays of both halves.
    """

    step: int
    attempt: int
    plan: str
    key: str
    ledger: str
    digest: list[str] = dataclasses.field(default_factory=list)

    def public(self) -> dict[str, Any]:
        return {"step": self.step, "attempt": self.attempt, "plan": self.plan}


@dataclasses.dataclass(frozen=True)
class Staged:
    """A checkpoint that is whole and not published, and the release that it was staged for."""

    meta: Meta
    release: dict[str, Any] | None


class Checkpoints:
    """The checkpoints of a run. Every process of a run has its own of these, on one folder.

    Args:
      folder: of the run.
      keep: how many of the newest are kept.
      keep_period: and every one whose step is a multiple of this.
    """

    def __init__(self, folder: RunFolder, *, keep: int = 3, keep_period: int | None = None) -> None:
        self.keep, self.keep_period = keep, keep_period
        self.folder = folder.released.absolute() / CHECKPOINTS
        self._private = folder.private.absolute() / CHECKPOINTS
        self._staging = folder.private.absolute() / STAGING
        self._damaged = folder.private.absolute() / DAMAGED
        if is_first():
            self.folder.mkdir(exist_ok=True)
            for place in (self._private, self._staging):
                closed_folder(place)
        together("bevel: folders of checkpoints")
        halves = {RELEASED: array_handler(), PRIVATE: array_handler()}
        self._writer = ocp.AsyncCheckpointer(ocp.CompositeCheckpointHandler(**halves))
        logging.getLogger("absl").addFilter(_is_news)
        self._staged: Staged | None = None

    def steps(self) -> list[int]:
        """Steps of the released checkpoints, newest first."""
        return _numbered(self.folder)

    def private_metas(self) -> Iterator[Meta]:
        """Of all checkpoints that were published, also where the released half is gone."""
        for step in _numbered(self._private):
            with contextlib.suppress(RestoreCheckpointError):
                yield _read_meta(self._private / str(step))

    def damaged(self) -> list[int]:
        """Steps of checkpoints that could not be read."""
        if not self._damaged.is_dir():
            return []
        names = (path.name.split("-") for path in self._damaged.iterdir())
        return [int(name[0]) for name in names if name[0].isdigit()]

    # Writing: stage, then publish.

    def stage(self, halves: Halves, meta: Meta, release: dict[str, Any] | None = None) -> None:
        """Begins to write, and returns when the arrays may be used and given away again.

        The checkpoint is whole, and not yet released, when `wait` returns. `meta` has the checksums
        of the arrays, `release` what is known of the steps that led to it.
        """
        released, private = by_name(halves.released), by_name(halves.private)
        args = ocp.args.Composite(
            **{
                RELEASED: ocp.args.PyTreeSave(detached(released)),
                PRIVATE: ocp.args.PyTreeSave(detached(private)),
            }
        )
        with full_disk_explained(self._staging):
            self._writer.save(self._staging / str(meta.step), args=args, force=True)
        self._staged = Staged(meta, release)

    def wait(self) -> None:
        """Waits until what `stage` began is whole. Raises if it failed."""
        with full_disk_explained(self._staging):
            self._writer.wait_until_finished()
            self._writer.check_for_errors()
            staged, self._staged = self._staged, None
            if staged is not None and is_first():
                _seal(self._staging / str(staged.meta.step), staged)
        together("bevel: checkpoint staged")

    def is_saving(self) -> bool:
        """Whether what `stage` began is not on disk yet."""
        staged = self._staged
        return staged is not None and not (self._staging / str(staged.meta.step)).exists()

    def publish(self, step: int) -> None:
        """Gives both halves of a staged checkpoint their names: from here on it is released.

        May be called again after it was cut short.
        """
        with full_disk_explained(self.folder):
            if is_first():
                staged = self._staging / str(step)
                for half, target in ((PRIVATE, self._private), (RELEASED, self.folder)):
                    if (staged / half).exists():
                        replace_folder(staged / half, target / str(step), self._staging)
                self._clear_staging()
                self._drop_old()
        together("bevel: checkpoint published")

    def staged(self) -> Staged | None:
        """The newest checkpoint that was staged, whole, and not published: its process ended."""
        for step in _numbered(self._staging):
            folder = self._staging / str(step)
            for place in (folder / PRIVATE, self._private / str(step)):
                with contextlib.suppress(OSError, ValueError):
                    if (folder / RELEASED / FILE).exists():
                        release = json.loads((folder / RELEASE).read_text())
                        if release is not None:
                            made(release, folder / RELEASE, 1)
                        return Staged(_read_meta(place), release)
        return None

    def discard_staged(self) -> None:
        """Removes what was not published: its steps are run again."""
        if is_first():
            self._clear_staging()
        together("bevel: staging is empty")

    def _clear_staging(self) -> None:
        for path in self._staging.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def _drop_old(self) -> None:
        period = self.keep_period
        for step in self.steps()[self.keep :]:
            if period is None or step % period:
                self._move_away(step, self._staging / f"dropped-{step}")
                shutil.rmtree(self._staging / f"dropped-{step}")

    def _move_away(self, step: int, target: Path) -> None:
        """Both halves of a released checkpoint, as two folders of `target`: the released first."""
        closed_folder(target)
        for half, place in ((RELEASED, self.folder), (PRIVATE, self._private)):
            if (place / str(step)).exists():
                (place / str(step)).rename(target / half)

    # Reading.

    def restore(self, step: int, like: Halves, *, staged: bool = False) -> tuple[Halves, Meta]:
        """The state of a checkpoint, in the place of `like`: on its mesh, whatever it was saved on.

        Raises `RestoreCheckpointError` if it cannot be read, or is not what was saved.
        """
        released, private = self.folder / str(step), self._private / str(step)
        if staged:
            released, private = (self._staging / str(step) / half for half in (RELEASED, PRIVATE))
        meta = _read_meta(private)
        try:
            found = Halves(
                _read_arrays(released, like.released), _read_arrays(private, like.private)
            )
            checksums = digest_of(found)
        except Exception as error:
            raise RestoreCheckpointError(
                f"checkpoint {released} cannot be read ({_in_short(error)})"
            ) from error
        if (meta.step, meta.digest) != (step, checksums):
            raise RestoreCheckpointError(
                f"checkpoint {released} is damaged: its arrays do not have the checksums that were "
                "saved with them"
            )
        return found, meta

    def newest_good(
        self, like: Halves, attempt: int, check: Callable[[Meta], None]
    ) -> tuple[Halves, Meta] | None:
        """The newest checkpoint that can be read and passes `check`; None if there never was any.

        The others are moved to `private/damaged/`, with a warning. If none is left, that is an
        error: a run that has released something never begins afresh by itself.
        """
        failures, steps = [], self.steps()
        for step in steps:
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
            for bad in steps:
                if bad > step:
                    self._set_aside(bad, attempt)
            return found
        if failures or self.damaged():
            raise RestoreCheckpointError(
                f"no checkpoint of {self.folder} is good: {'; '.join(failures)}. Restore one from "
                "a copy; the run does not begin afresh, because what it released is spent."
            )
        return None

    def _set_aside(self, step: int, attempt: int) -> None:
        if is_first():
            closed_folder(self._damaged)
            names = (self._damaged / f"{step}-{attempt}-{k}" for k in range(10**6))
            self._move_away(step, next(name for name in names if not name.exists()))
        together("bevel: damaged checkpoint set aside")

    def close(self) -> None:
        with contextlib.suppress(Exception):  # `wait` has raised it; nothing relies on the rest
            self._writer.close()
        logging.getLogger("absl").removeFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    """False for Orbax's warning, at every save, that there are no files of its other container."""
    return "Skipping merge of OCDBT" not in str(record.msg)


def array_handler() -> ocp.PyTreeCheckpointHandler:
    return ocp.PyTreeCheckpointHandler(use_ocdbt=False, use_zarr3=False)


def _read_arrays(folder: Path, like: PyTree) -> PyTree:
    """The arrays of one half, sharded as those of `like` are."""
    named = by_name(like)
    shapes = {
        name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
        for name, x in named.items()
    }
    args = ocp.args.PyTreeRestore(
        item=shapes, restore_args=ocp.checkpoint_utils.construct_restore_args(shapes)
    )
    with warnings.catch_warnings(), ocp.Checkpointer(array_handler()) as reader:
        warnings.simplefilter("ignore")  # of a mesh that is another one than when it was saved
        found = reader.restore(folder, args=args)
    return jax.tree.unflatten(jax.tree.structure(like), [found[name] for name in named])


def _seal(folder: Path, staged: Staged) -> None:
    """Completes a staged checkpoint: what it belongs to, and no trace of when it was written."""
    for half in (RELEASED, PRIVATE):
        (folder / half / COMMITTED).unlink(missing_ok=True)
    # Not synced, as the arrays are not: what a power cut takes is found by its checksums.
    for path, content in (
        (folder / RELEASE, staged.release),
        (folder / PRIVATE / FILE, dataclasses.asdict(staged.meta)),
        (folder / RELEASED / FILE, staged.meta.public()),
    ):
        path.write_text(json.dumps(content))
    (folder / PRIVATE / FILE).chmod(0o600)
    (folder / RELEASE).chmod(0o600)
    for place, _, files in os.walk(folder / RELEASED, topdown=False):
        for name in (*files, "."):
            os.utime(os.path.join(place, name), (NO_TIME, NO_TIME))


def replace_folder(source: Path, target: Path, trash: Path) -> None:
    """Renames a folder; one that has the name already is taken out of the way first."""
    if target.exists():
        old = trash / f"replaced-{target.name}"
        target.rename(old)
        shutil.rmtree(old)
    source.rename(target)


def _read_meta(folder: Path) -> Meta:
    try:
        found = Meta(**json.loads((folder / FILE).read_text()))
        if [type(x) for x in (found.step, found.attempt, found.digest)] != [int, int, list]:
            raise TypeError("fields of other kinds")
        return found
    except (OSError, ValueError, TypeError) as error:
        raise RestoreCheckpointError(
            f"checkpoint {folder} cannot be read ({_in_short(error)})"
        ) from error


def _in_short(error: Exception) -> str:
    """An error on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _numbered(folder: Path) -> list[int]:
    """Folders whose names are numbers, the largest first."""
    if not folder.is_dir():
        return []
    return sorted(
        (int(path.name) for path in folder.iterdir() if path.name.isdigit()), reverse=True
    )


def digest_of(halves: Halves) -> list[str]:
    return digest((by_name(halves.released), by_name(halves.private)))


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
