"""A run in a folder: releases its checkpoints, and resumes after a crash or an interruption.

A release charges before it publishes, and each part is on disk before the next begins
(`training.releaser`). After a crash, every step is therefore either in the ledger, with a
checkpoint that is published or can be, or was never seen by anyone and is run again with the same
noise at no cost. An interrupted run stages its state and releases nothing, so its releases do not
reveal when it was interrupted.
"""

import contextlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bevel.errors import BevelError, RestoreCheckpointError
from bevel.execution_plan import DPExecutionPlan, PlanSecrets
from bevel.file_errors import check_in_place
from bevel.training.checkpoint import Checkpoints, Staged, StateHalves, digest_of
from bevel.training.checkpoint_metadata import CheckpointMetadata
from bevel.training.folder import IDENTITY, LEDGER, LOCK, RELEASES, SECRETS, RunFolder, explained
from bevel.training.identity import (
    Change,
    Identity,
    check_fixed_settings,
    check_resumable,
    read_identity,
    write_identity,
)
from bevel.training.metrics_files import MetricsFiles, to_json
from bevel.training.process_agreement import any_process, barrier, from_first_process, is_first
from bevel.training.releaser import Releaser
from bevel.training.releases import (
    ReleaseRecord,
    Releases,
    differences,
)
from bevel.training.resume import check_composes, fresh_attempt_notice
from bevel.training.run_json import RunRecord
from bevel.training.run_ledger import RunLedger
from bevel.training.run_options import RunOptions
from bevel.training.sampler_states import SamplerStates
from bevel.training.secrets import check_commitment, keep_secrets, read_secrets, write_secrets
from bevel.training.stopwatch import Stopwatch

PyTree = Any
Metrics = dict[str, Any]


class FolderRun:
    """A run in a folder. It locks the folder and the ledger, so use it as a context manager."""

    keeps = True

    def __init__(self, folder: Path, plan: DPExecutionPlan, options: RunOptions) -> None:
        self.folder, self.plan, self.options = RunFolder(folder), plan, options
        self.stopwatch = Stopwatch()
        self._metrics: MetricsFiles | None = None  # in the first process only
        self._unseen: BaseException | None = None  # error of a release that was not waited for
        self._lock = -1
        try:
            self._lock = self.folder.open() if is_first() else -1
            barrier("bevel: folder of the run")
            self._open(plan, options)
        except BaseException:
            self.close(failed=True)
            raise

    @explained
    def _open(self, plan: DPExecutionPlan, options: RunOptions) -> None:
        self.record = RunRecord(self.folder)
        root, self.name = self.folder.root, self.record.name_of_run(options.name)
        # Before the ledger compares budgets: this error names the setting that changed.
        check_fixed_settings(root, self.folder.private, options.settings, plan)
        self.budget = options.budget or plan.budget
        self.delta = options.delta or (self.budget.delta if self.budget else None)
        self.ledger_path = Path(options.ledger or self.folder.released / LEDGER)
        self.ledger = RunLedger(
            self.ledger_path,
            plan,
            self.name,
            self.budget,
            options.anchor,
            self.folder.private,
            releases_every=options.checkpoint_every,
        )
        if is_first():
            self.folder.remove_leftovers()
        self.checkpoints = Checkpoints(
            self.folder, keep=options.keep, keep_period=options.keep_period
        )
        self.run_secrets = self._create_or_read_secrets()
        self.sampler_states = SamplerStates(self.folder.private, self.run_secrets.row_key)
        self._releases = Releases(self.folder.private / RELEASES, write=is_first())
        if is_first():
            self._metrics = MetricsFiles(self.folder, tensorboard=options.tensorboard)
        self.releaser = Releaser(
            self.folder,
            plan,
            self.run_secrets,
            self.delta,
            ledger=self.ledger,
            checkpoints=self.checkpoints,
            releases=self._releases,
            metrics=self._metrics,
            check_in_place=self._check_in_place,
        )

    @property
    def attempt(self) -> int:
        return self.ledger.attempt

    @property
    def secrets(self) -> PlanSecrets:
        """The secrets of the current attempt."""
        return self.run_secrets.of_attempt(self.attempt)

    # Starting and resuming.

    def _create_or_read_secrets(self) -> PlanSecrets:
        """Returns the secrets of the run, which are drawn when the run starts."""
        path = self.folder.private / SECRETS
        if not (self.record.public or path.exists() or self.checkpoints.steps()):
            self.ledger.check_is_new(self.folder.root)
            # Do not use the plan's secrets: runs of one plan must not share a key.
            known = self.plan.secrets if self.plan.secrets.known else None
            secrets = known or PlanSecrets.new(self.plan.secrets.generator)
            if is_first():
                write_secrets(path, secrets)
        barrier("bevel: secrets written")
        return read_secrets(path)

    @explained
    def identify(self, identity: Identity) -> list[Change]:
        """Records the identity of a new run. When resuming, compares it and returns the changes."""
        before = read_identity(self.folder.private)
        if before is not None:
            accepted = check_resumable(before, identity, self.options.accept, str(self.folder.root))
        elif not self.checkpoints.steps():
            accepted = []
        else:
            raise RestoreCheckpointError(
                f"{self.folder.private / IDENTITY} is missing, so it is unknown what this run was "
                "started with. Restore the private half from a backup."
            )
        barrier("bevel: identity compared")
        if is_first() and (before is None or accepted):
            write_identity(self.folder.private, identity)
        return accepted

    @explained
    def resume(
        self,
        like: StateHalves,
        begin: StateHalves | None,
        environment: dict[str, Any],
        rows_between: Callable[[int, int], list[str]],
    ) -> StateHalves:
        """Returns the state to resume from, with the types and shardings of `like`.

        A new run saves and returns `begin`, which is None if there is a checkpoint. The exact
        result of a step depends on the `environment` (`ReleaseRecord.exactly`). `rows_between`
        computes the digests of the rows that steps of the current attempt read.
        """
        self.releaser.environment, ledger = to_json(environment), self.ledger
        ledger.join(self.run_secrets.commitment)
        for meta in self.checkpoints.private_metas():
            if (meta.key, meta.plan) == (self.run_secrets.commitment, self.plan.fingerprint()):
                ledger.check_contains(meta)
        self._publish_charged_checkpoint()
        restored = self.checkpoints.restore_newest(like, self.attempt, self._check)
        if restored is None:
            if ledger.released or begin is None:
                raise RestoreCheckpointError(
                    f"the ledger has charges of run {self.name!r} up to step {ledger.released}, "
                    f"but {self.checkpoints.folder} has no checkpoint. Restore the checkpoints. "
                    "The run does not start over, because what it released is spent."
                )
            meta = self.releaser.metadata(0, digest_of(begin))
            self.checkpoints.stage(begin, meta)
            self.checkpoints.wait()
            self.checkpoints.publish(0)
            self.releaser.last_digest = meta.digest
            return begin
        meta = restored[1]
        self.releaser.last_published = (meta.step, meta.attempt)
        self.releaser.last_digest = meta.digest
        ledger.check_contains(meta)
        if meta.step < ledger.released:
            recorded = self._releases.between(meta.step, ledger.released, self.attempt)
            if not all([ledger.charged_for(r.stop, self.releaser.content(r)) for r in recorded]):
                recorded = []
            why = differences(recorded, meta.digest, self.releaser.environment, rows_between)
            if why:
                self.take_fresh_attempt(why)
            else:
                self.releaser.replays = {release.stop: release.after for release in recorded}
        kept, restored = [restored[0]], None
        return self._interrupted_state(like, meta, kept)

    def take_fresh_attempt(self, why: list[str]) -> None:
        """Uses fresh noise and batches from the restored checkpoint on, and charges them again."""
        step, released = self.releaser.last_published[0], self.ledger.released
        check_composes(step, released, why, self.plan.composes_by_step)
        if is_first():
            notice = fresh_attempt_notice(step, released, self.attempt + 1, why)
            warnings.warn(notice, stacklevel=2)
        self.releaser.replays, self.releaser.earlier_rows = {}, []
        self.ledger.begin_attempt(step)

    @explained
    def restore_again(self, like: StateHalves) -> StateHalves:
        """Restores the checkpoint that the run resumed from once more."""
        state, meta = self.checkpoints.restore(self.releaser.last_published[0], like)
        self.releaser.last_digest = meta.digest
        return state

    def _publish_charged_checkpoint(self) -> None:
        """Publishes a staged checkpoint that is already charged, and so counts as released."""
        staged, step, content = self._staged(), -1, ""
        if staged is not None and staged.release is not None:
            record = ReleaseRecord(**staged.release)
            step, content = staged.meta.step, self.releaser.content(record)
        charged = self.ledger.charged_for(step, content)
        step = int(from_first_process(step if charged and step == self.ledger.released else -1)[0])
        if step >= 0:
            self.checkpoints.publish(step)

    def _interrupted_state(
        self, like: StateHalves, last: CheckpointMetadata, kept: list[StateHalves]
    ) -> StateHalves:
        """Returns the state that an interrupted run staged after `last`, or else that in `kept`.

        Nobody has seen this state, so resuming from it costs nothing.
        """
        staged, state = self._staged(), None
        follows = (
            staged is not None
            and staged.release is not None
            and (staged.release["first"], staged.release["before"]) == (last.step, last.digest)
            and not self.releaser.replays
        )
        step = int(from_first_process(staged.meta.step if staged and follows else -1)[0])
        # Other runs may have spent the budget meanwhile. Then these steps cannot be released.
        if step >= 0 and self.ledger.affordable(last.step, step) == step:
            kept.clear()  # memory may not hold two states
            with contextlib.suppress(RestoreCheckpointError):
                state, _ = self.checkpoints.restore(step, like, staged=True)
        if any_process(state is None) or state is None:
            self.checkpoints.discard_staged()
            return kept[0] if kept else self.restore_again(like)
        self.releaser.earlier_rows = staged.release["rows"] if staged and staged.release else []
        return state

    def _staged(self) -> Staged | None:
        """Returns the unpublished checkpoint of this run and attempt, in the first process."""
        staged = self.checkpoints.staged() if is_first() else None
        current = (self.run_secrets.commitment, self.attempt)
        return staged if staged and (staged.meta.key, staged.meta.attempt) == current else None

    def _check(self, meta: CheckpointMetadata) -> None:
        where = f"checkpoint {self.checkpoints.folder / str(meta.step)}"
        meta.check_plan(self.plan.fingerprint(), where)
        check_commitment(self.run_secrets, meta.key, where)

    # Releasing.

    def last_release(self, step: int) -> int:
        """Returns the step of the last published checkpoint."""
        return self.releaser.last_published[0]

    def next_goal(self, step: int, stop: int) -> int:
        """Returns the step of the next release: `stop`, or earlier if the budget requires it.

        Steps that are run again are released at the same step as before.
        """
        stop = min([stop, *(s for s in self.releaser.replays if s > step)])
        with self.stopwatch.part("epsilon"):
            goal = self.ledger.affordable(step, stop)
        if goal > step:
            self.releaser.prepare(goal)
        return goal

    def release(
        self,
        step: int,
        first: int,
        state: StateHalves,
        raw: list[Metrics],
        rows: list[str],
        evaluate: Callable[[], Any] | None,
        show: Callable[[Metrics], None],
    ) -> None:
        self.releaser.release(step, first, state, raw, rows, evaluate, show)

    def keep_unreleased(
        self, step: int, first: int, state: StateHalves, raw: list[Metrics], rows: list[str]
    ) -> None:
        self.releaser.keep_unreleased(step, first, state, raw, rows)

    def finish_release(self, *, if_ready: bool = False) -> Metrics | None:
        return self.releaser.finish_release(if_ready=if_ready)

    def seconds_of_releases(self) -> dict[str, float]:
        """Returns the seconds that each part of all releases took in the second thread."""
        return {name: round(s, 3) for name, s in self.releaser.stopwatch.seconds.items()}

    def needs_metrics(self, step: int) -> bool:
        return self.releaser.needs_metrics(step)

    def write_record(self, **fields: Any) -> None:
        self.record.add_public(name=self.name, **fields)

    def write_private_record(self, **fields: Any) -> None:
        self.record.add_private(**fields)

    def _check_in_place(self) -> None:
        """Raises if the folder was moved, removed or replaced. Puts back lost secrets."""
        if self._lock >= 0:
            check_in_place(self._lock, self.folder.private / LOCK)
            keep_secrets(self.folder.private / SECRETS, self.run_secrets)

    def close(self, *, failed: bool = False) -> None:
        """Closes everything, even if closing one part fails. Then raises, unless a run `failed`."""
        hidden = (BevelError,) if failed else ()
        with contextlib.suppress(*hidden), contextlib.ExitStack() as closing:
            closing.callback(self._unlock)  # last: a release that is under way checks the lock file
            closing.callback(self._raise_unseen, failed)
            for part in ("ledger", "_releases", "_metrics", "checkpoints"):
                if getattr(self, part, None) is not None:
                    closing.callback(getattr(self, part).close)
            if is_first():
                closing.callback(self.folder.reset_times)
            releaser = getattr(self, "releaser", None)
            self._unseen = None if releaser is None else releaser.close()

    def _unlock(self) -> None:
        lock, self._lock = self._lock, -1
        self.folder.unlock(lock)

    def _raise_unseen(self, failed: bool) -> None:
        """Raises the error of a release that was not waited for, unless the run failed anyway."""
        if self._unseen is not None and not failed:
            raise self._unseen

    def __enter__(self) -> "FolderRun":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        self.close(failed=kind is not None)
