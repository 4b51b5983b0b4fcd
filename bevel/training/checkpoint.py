"""Checkpoints in two halves, published together.

    released/checkpoints/STEP/   the arrays that may be shown to anyone; checkpoint.json: step, plan
    private/checkpoints/STEP/    the noise state; checkpoint.json: `CheckpointMetadata`

Orbax first writes both halves to a staging folder in `private/`. Once the steps are charged, the
checkpoint is published by renaming the private half and then the released half, so a released half
always has its private half. A staged checkpoint that is never charged shows nothing to anyone, and
an interrupted run resumes from it. Arrays are written as zarr (`training.array_files`), because
Orbax's OCDBT format contains the time of day and random names. Neither half contains keys, seeds or
frozen parameters.
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
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from bevel.accounting.ledger.durable_files import sync_folder, sync_tree
from bevel.errors import BevelError, FixStorageError, RestoreCheckpointError
from bevel.file_errors import explain_file_errors, file_error, is_storage_fault
from bevel.training.array_files import read_arrays, writing_handler
from bevel.training.checkpoint_metadata import (
    CheckpointMetadata,
    numbered_folders,
    one_line,
    read_json,
    read_metadata,
)
from bevel.training.digest import digest
from bevel.training.folder import (
    CHECKPOINT,
    CHECKPOINTS,
    DAMAGED,
    NO_TIME,
    PRIVATE,
    RELEASE,
    RELEASED,
    STAGING,
    RunFolder,
    make_private_folder,
)
from bevel.training.out_of_memory import is_out_of_memory
from bevel.training.process_agreement import any_process, barrier, is_first
from bevel.training.releases import parse_release
from bevel.training.state import path_text, shaped

PyTree = Any
# Contains the name of the temporary folder that Orbax wrote to, which includes the time.
ORBAX_COMMIT_FILE = "commit_success.txt"
# A warning about missing OCDBT files, one about what a failed save left behind, and errors.
_NOT_LOGGED = (
    "Skipping merge of OCDBT",
    "Attempted to create temporary directory",
    "background save thread",
    "_SignalingThread.run() raised",
)
# Saved for a half without arrays, which Orbax refuses: a run without privacy has no noise state.
NO_ARRAYS = {"no_arrays": np.zeros(1, np.float32)}


class StateHalves(NamedTuple):
    """The state of a run as it is saved: the half that may be shown, and the private half."""

    released: PyTree
    private: PyTree


@dataclasses.dataclass(frozen=True)
class Staged:
    """A complete but unpublished checkpoint, and the release that it was staged for."""

    meta: CheckpointMetadata
    release: dict[str, Any] | None


class Checkpoints:
    """The checkpoints of a run. Every process of a run opens one of these on the same folder.

    Args:
      folder: the folder of the run.
      keep: the number of newest checkpoints to keep.
      keep_period: also keep every checkpoint whose step is a multiple of this.
    """

    def __init__(self, folder: RunFolder, *, keep: int = 3, keep_period: int | None = None) -> None:
        self.keep, self.keep_period = keep, keep_period
        self.folder = folder.released.absolute() / CHECKPOINTS
        self._private = folder.private.absolute() / CHECKPOINTS
        self._staging = folder.private.absolute() / STAGING
        self._damaged = folder.private.absolute() / DAMAGED
        if is_first():
            self.folder.mkdir(exist_ok=True)
            for path in (self._private, self._staging):
                make_private_folder(path)
        barrier("bevel: folders of checkpoints")
        halves = {RELEASED: writing_handler(), PRIVATE: writing_handler()}
        # If a thread creates the folders and fails, others wait for it for five minutes.
        at_once = ocp.options.AsyncOptions(create_directories_asynchronously=False)
        handler = ocp.CompositeCheckpointHandler(
            composite_options=ocp.CompositeOptions(async_options=at_once), **halves
        )
        self._writer = ocp.AsyncCheckpointer(handler, async_options=at_once)
        logging.getLogger("absl").addFilter(_keep_log_record)
        self._staged: Staged | None = None

    def steps(self) -> list[int]:
        """Returns the steps of the released checkpoints, newest first."""
        return numbered_folders(self.folder)

    def exist(self) -> bool:
        """Returns whether the run has, or had, a checkpoint: then it never starts over."""
        return bool(self.steps() or self.damaged_steps())

    def private_metas(self) -> Iterator[CheckpointMetadata]:
        """Yields the metadata of all published checkpoints, even if the released half is gone."""
        for step in numbered_folders(self._private):
            with contextlib.suppress(RestoreCheckpointError):
                yield read_metadata(self._private / str(step))

    def damaged_steps(self) -> list[int]:
        """Returns the steps of checkpoints that could not be read."""
        if not self._damaged.is_dir():
            return []
        names = (path.name.split("-")[0] for path in self._damaged.iterdir())
        return [int(name) for name in names if name.isdecimal()]

    # Writing: stage, then publish.

    def stage(
        self, halves: StateHalves, meta: CheckpointMetadata, release: dict[str, Any] | None = None
    ) -> None:
        """Starts writing a checkpoint. The arrays may be donated once this returns.

        Until they are written, there is one copy of them on the host. The checkpoint is complete,
        and not yet released, when `wait` returns. `meta` has the checksums of the arrays; `release`
        is the `ReleaseRecord` of the steps, as a dict.
        """
        saved = [ocp.args.PyTreeSave(_with_elements(by_name(half)) or NO_ARRAYS) for half in halves]
        args = ocp.args.Composite(**dict(zip((RELEASED, PRIVATE), saved, strict=True)))
        with _explain_write_errors(self._staging):
            self._writer.save(self._staging / str(meta.step), args=args, force=True)
        self._staged = Staged(meta, release)

    def wait(self) -> None:
        """Waits until the checkpoint passed to `stage` is complete. Raises if that failed."""
        with _explain_write_errors(self._staging):
            self._writer.wait_until_finished()
            self._writer.check_for_errors()
            staged, self._staged = self._staged, None
            if staged is not None and is_first():
                _complete(self._staging / str(staged.meta.step), staged)
        barrier("bevel: checkpoint staged")

    def publish(self, step: int) -> None:
        """Renames both halves of a staged checkpoint to their final names, which releases it.

        You may call this again if a previous call did not finish.
        """
        with explain_file_errors(self.folder):
            if is_first():
                staged = self._staging / str(step)
                for half, target in ((PRIVATE, self._private), (RELEASED, self.folder)):
                    if (staged / half).exists():
                        replace_folder(staged / half, target / str(step), self._staging)
                        sync_folder(target / str(step))
                self._clear_staging()
                self._drop_old()
        barrier("bevel: checkpoint published")

    def staged(self) -> Staged | None:
        """Returns the newest complete checkpoint that an earlier process did not publish."""
        for step in numbered_folders(self._staging):
            folder = self._staging / str(step)
            for private in (folder / PRIVATE, self._private / str(step)):
                with contextlib.suppress(RestoreCheckpointError):
                    if (folder / RELEASED / CHECKPOINT).exists():
                        release = read_json(folder / RELEASE)
                        if release is not None:
                            parse_release(release, folder / RELEASE, 1)
                        return Staged(read_metadata(private), release)
        return None

    def discard_staged(self) -> None:
        """Removes staged checkpoints that were not published. Their steps will be run again."""
        if is_first():
            self._clear_staging()
        barrier("bevel: staging is empty")

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
        """Moves both halves of a published checkpoint into `target`, the released half first."""
        make_private_folder(target)
        for half, parent in ((RELEASED, self.folder), (PRIVATE, self._private)):
            if (parent / str(step)).exists():
                (parent / str(step)).rename(target / half)

    # Reading.

    def restore(
        self, step: int, like: StateHalves, *, staged: bool = False
    ) -> tuple[StateHalves, CheckpointMetadata]:
        """Reads a checkpoint. Arrays are sharded like those of `like`, whatever the saved mesh was.

        Raises `RestoreCheckpointError` if it cannot be read, or its checksums do not match.
        """
        released, private = self.folder / str(step), self._private / str(step)
        if staged:
            released, private = (self._staging / str(step) / half for half in (RELEASED, PRIVATE))
        meta = read_metadata(private)
        try:
            state = StateHalves(
                _read_arrays(released, like.released), _read_arrays(private, like.private)
            )
            checksums = digest_of(state)
        except Exception as error:
            # In these two cases, the checkpoint may be fine.
            if is_out_of_memory(error):
                raise
            if is_storage_fault(error):
                raise file_error(error, released) from error
            raise RestoreCheckpointError(
                f"checkpoint {released} cannot be read ({one_line(error)})"
            ) from error
        if (meta.step, meta.digest) != (step, checksums):
            raise RestoreCheckpointError(
                f"checkpoint {released} is damaged: its arrays do not match the checksums saved "
                "with them"
            )
        return state, meta

    def restore_newest(
        self, like: StateHalves, attempt: int, check: Callable[[CheckpointMetadata], None]
    ) -> tuple[StateHalves, CheckpointMetadata] | None:
        """Restores the newest checkpoint that can be read and passes `check`.

        Newer checkpoints that fail are moved to `private/damaged/`, with a warning. Returns None if
        there has never been a checkpoint. Raises if none is usable, because a run that has released
        something must not start over by itself.
        """
        failures, steps = [], self.steps()
        for step in steps:
            restored, failure = None, ""
            try:
                restored = self.restore(step, like)
                check(restored[1])
            except RestoreCheckpointError as error:
                failure = str(error)
            if any_process(bool(failure)):  # all processes must restore the same checkpoint
                failures.append(failure or f"checkpoint {step} failed in another process")
                continue
            for failure in failures:
                warnings.warn(f"{failure}. Resuming from step {step} instead.", stacklevel=3)
            for newer in steps:
                if newer > step:
                    self._move_to_damaged(newer, attempt)
            return restored
        if failures or self.damaged_steps():
            raise RestoreCheckpointError(
                f"no checkpoint in {self.folder} is usable: {'; '.join(failures)}. Restore one "
                "from a backup. The run does not start over, because what it released is spent."
            )
        return None

    def _move_to_damaged(self, step: int, attempt: int) -> None:
        if is_first():
            make_private_folder(self._damaged)
            names = (self._damaged / f"{step}-{attempt}-{k}" for k in range(10**6))
            self._move_away(step, next(name for name in names if not name.exists()))
        barrier("bevel: damaged checkpoint moved")

    def close(self) -> None:
        with contextlib.suppress(Exception):  # `wait` has already raised errors that matter
            self._writer.close()
        logging.getLogger("absl").removeFilter(_keep_log_record)


def _keep_log_record(record: logging.LogRecord) -> bool:
    """Returns False for what Orbax logs at every save, and about errors that `wait` raises."""
    return not any(text in str(record.msg) for text in _NOT_LOGGED)


def _read_arrays(folder: Path, like: PyTree) -> PyTree:
    """Reads the arrays of one half, sharded like those of `like`."""
    named = by_name(like)
    arrays = {
        name: jnp.zeros(x.shape, x.dtype, device=x.sharding)
        for name, x in named.items()
        if not x.size
    }
    saved = _with_elements(named)
    if saved:
        arrays |= read_arrays(folder, {name: shaped(x) for name, x in saved.items()})
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in named])


def _complete(folder: Path, staged: Staged) -> None:
    """Adds the metadata to a staged checkpoint and removes all traces of when it was written."""
    for half in (RELEASED, PRIVATE):
        (folder / half / ORBAX_COMMIT_FILE).unlink(missing_ok=True)
    for path, fields in (
        (folder / RELEASE, staged.release),
        (folder / PRIVATE / CHECKPOINT, dataclasses.asdict(staged.meta)),
        (folder / RELEASED / CHECKPOINT, staged.meta.public()),
    ):
        path.write_text(json.dumps(fields))
    (folder / PRIVATE / CHECKPOINT).chmod(0o600)
    (folder / RELEASE).chmod(0o600)
    for parent, _, files in os.walk(folder / RELEASED, topdown=False, onerror=_raise):
        for name in (*files, "."):
            os.utime(os.path.join(parent, name), (NO_TIME, NO_TIME))
    # A power failure after the charge must not lose what was charged.
    sync_tree(folder)
    sync_folder(folder)


def _raise(error: OSError) -> None:
    raise error


def replace_folder(source: Path, target: Path, trash: Path) -> None:
    """Renames a folder. If the target exists, it is moved to `trash` and deleted first."""
    if target.exists():
        old = trash / f"replaced-{target.name}"
        target.rename(old)
        shutil.rmtree(old)
    source.rename(target)


@contextlib.contextmanager
def _explain_write_errors(path: Path) -> Iterator[None]:
    """Around calls of Orbax, which reports errors of its threads in various ways."""
    try:
        with explain_file_errors(path):
            yield
    except (BevelError, MemoryError):
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise FixStorageError(
            f"the checkpoint in {path} could not be written ({one_line(error)}). Repair this and "
            "start again: the run resumes from its last complete checkpoint."
        ) from error


def _with_elements(named: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Returns the arrays that are saved: those that have elements."""
    return {name: x for name, x in named.items() if x.size}


def digest_of(halves: StateHalves) -> list[str]:
    """Returns the checksums of the arrays of both halves."""
    return digest((by_name(halves.released), by_name(halves.private)))


def by_name(tree: PyTree) -> dict[str, jax.Array]:
    """Returns the leaves of a tree by a unique name, made of their number and path."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {
        f"{number:05d}.{path_text(path).replace('/', '.')}": leaf
        for number, (path, leaf) in enumerate(leaves)
    }
