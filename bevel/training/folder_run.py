"""A run in a folder: what is on disk before anything is released, and how a run goes on.

The order of a release, in which each part is on disk before the next begins:

1. both halves of the checkpoint are staged in the private folder (`training.checkpoint`);
2. the record of what they were made of (`training.releases`), and raw rows;
3. the charge, or the mark of the release, in the ledger;
4. the checkpoint is published by rename; then evaluation, metrics and callbacks.

So a crash leaves steps that the ledger has, whose checkpoint is published or can be, and steps that
nobody has seen: those are run again, with the same noise, at no cost. A run that is interrupted
stages its state and releases nothing, so when that happened is not seen from what it releases.
"""

import contextlib
import dataclasses
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from bevel.errors import FixArgumentsError, RestoreCheckpointError
from bevel.execution_plan import DPExecutionPlan, PlanSecrets
from bevel.training.checkpoint import Checkpoints, Halves, Meta, Staged, digest_of
from bevel.training.disk_full import full_disk_explained
from bevel.training.folder import LEDGER, RELEASES, SECRETS, RunFolder
from bevel.training.identity import Change, Identity, check_goes_on, read_identity, write_identity
from bevel.training.metrics_files import MetricsFiles, checked_metrics, plain
from bevel.training.process_agreement import agreed, any_of, is_first, together
from bevel.training.releases import ReleaseRecord, Releases, content, differences
from bevel.training.resume import ReplayDiffersError, check_composes, fresh_attempt_notice
from bevel.training.run_json import RunRecord
from bevel.training.run_ledger import RunLedger
from bevel.training.run_options import RunOptions
from bevel.training.secrets import check_commitment, read_secrets, write_secrets

PyTree = Any
Metrics = dict[str, Any]


@dataclasses.dataclass
class _Pending:
    """A checkpoint that is being staged, and what follows once it is whole."""

    step: int
    release: ReleaseRecord | None  # None where the checkpoint is published already
    raw: list[Metrics]
    evaluate: Callable[[], Any]
    show: Callable[[Metrics], None]


class FolderRun:
    """A run in a folder. Use it as a context manager: it holds the ledger's lock."""

    keeps = True

    def __init__(self, folder: Path, plan: DPExecutionPlan, options: RunOptions) -> None:
        self.folder, self.plan, self.options = RunFolder(folder), plan, options
        self._restored = (0, 0)  # step and attempt of the last checkpoint that is published
        self._before: list[str] = []  # checksums of the state at the last release
        self._rows: list[str] = []  # digests of rows since then, of a run that was interrupted
        self._replayed: dict[int, list[str]] = {}  # checksums that released steps must give again
        self._pending: _Pending | None = None
        self._records: MetricsFiles | None = None
        self._lock = -1
        if is_first():
            self.folder.create()
            self._lock = self.folder.lock()
        together("bevel: folder of the run")
        try:
            self._open(plan, options)
        except BaseException:
            self.close()
            raise

    def _open(self, plan: DPExecutionPlan, options: RunOptions) -> None:
        self.record = RunRecord(self.folder)
        root = self.folder.root
        self.name = self.record.public.get("name") or options.name or root.absolute().name
        if options.name not in (None, self.name):
            raise FixArgumentsError(
                f"{root} holds the run {self.name!r}, and it was opened as {options.name!r}: "
                "leave the name out, or take another folder."
            )
        self.budget = options.budget or plan.budget
        self.delta = options.delta or (self.budget.delta if self.budget else None)
        self.ledger_path = Path(options.ledger or self.folder.released / LEDGER)
        self.ledger = RunLedger(
            self.ledger_path, plan, self.name, self.budget, options.anchor, self.folder.private
        )
        if is_first():
            self.folder.tidy()
        self.checkpoints = Checkpoints(
            self.folder, keep=options.keep, keep_period=options.keep_period
        )
        self.root = self._secrets()
        self._releases = Releases(self.folder.private / RELEASES, write=is_first())
        if is_first():
            self._records = MetricsFiles(self.folder, tensorboard=options.tensorboard)

    @property
    def attempt(self) -> int:
        return self.ledger.attempt

    @property
    def secrets(self) -> PlanSecrets:
        return self.root.of_attempt(self.attempt)

    # Beginning, and going on.

    def _secrets(self) -> PlanSecrets:
        """Those of the run: new ones, unless it was begun before."""
        path = self.folder.private / SECRETS
        if not (self.record.public or path.exists() or self.checkpoints.steps()):
            self.ledger.check_is_new(self.folder.root)
            # Not the plan's own: a plan may serve several runs, and no two may have one key.
            known = self.plan.secrets if self.plan.secrets.known else None
            secrets = known or PlanSecrets.new(self.plan.secrets.generator)
            if is_first():
                write_secrets(path, secrets)
        together("bevel: secrets written")
        return read_secrets(path)

    def identify(self, identity: Identity) -> list[Change]:
        """Records what the run is, or compares it with what it was: the changes it goes on with."""
        before = read_identity(self.folder.private)
        if before is not None:
            found = check_goes_on(before, identity, self.options.accept, str(self.folder.root))
        elif not self.checkpoints.steps():
            found = []
        else:
            raise RestoreCheckpointError(
                f"{self.folder.private} lacks the record of what this run was begun with: restore "
                "the private half from a copy."
            )
        together("bevel: identity compared")
        if is_first() and (before is None or found):
            write_identity(self.folder.private, identity)
        return found

    def resume(
        self,
        like: Halves,
        exactly: dict[str, Any],
        rows_between: Callable[[int, int], list[str]],
    ) -> Halves:
        """The state to go on from: the newest good checkpoint's, in the place of `like`.

        A run that was not begun begins with `like`, which is saved first. `rows_between` gives the
        digests of the rows that steps of the present attempt read.
        """
        self.exactly, ledger = plain(exactly), self.ledger
        ledger.join(self.root.commitment)
        for meta in self.checkpoints.private_metas():
            if (meta.key, meta.plan) == (self.root.commitment, self.plan.fingerprint()):
                ledger.check_has(meta)
        self._publish_what_was_charged()
        found = self.checkpoints.newest_good(like, self.attempt, self._check)
        if found is None:
            if ledger.released:
                raise RestoreCheckpointError(
                    f"the ledger has charges of run {self.name!r} up to step {ledger.released}, "
                    f"and {self.checkpoints.folder} has no checkpoint: restore the checkpoints. "
                    "The run does not begin afresh, because what it released is spent."
                )
            meta = self._meta(0, digest_of(like))
            self.checkpoints.stage(like, meta)
            self.checkpoints.wait()
            self.checkpoints.publish(0)
            self._before = meta.digest
            return like
        state, meta = found
        self._restored, self._before = (meta.step, meta.attempt), meta.digest
        ledger.check_has(meta)
        if meta.step < ledger.released:
            recorded = self._releases.between(meta.step, ledger.released, self.attempt)
            if not all([ledger.charged_for(r.stop, self._content(r)) for r in recorded]):
                recorded = []
            why = differences(recorded, meta.digest, self.exactly, rows_between)
            if why:
                self.take_fresh_attempt(why)
            else:
                self._replayed = {release.stop: release.after for release in recorded}
        return self._interrupted_state(like, meta) or state

    def take_fresh_attempt(self, why: list[str]) -> None:
        """From the checkpoint on, noise and batches are fresh, and are charged again."""
        step, released = self._restored[0], self.ledger.released
        check_composes(step, released, why, self.plan.composes_by_step)
        if is_first():
            notice = fresh_attempt_notice(step, released, self.attempt + 1, why)
            warnings.warn(notice, stacklevel=2)
        self._replayed, self._rows = {}, []
        self.ledger.begin_attempt(step)

    def restore_again(self, like: Halves) -> Halves:
        """The state that the run goes on from, once more."""
        state, meta = self.checkpoints.restore(self._restored[0], like)
        self._before = meta.digest
        return state

    def _publish_what_was_charged(self) -> None:
        """Publishes a staged checkpoint that the ledger was charged for: it counts as released."""
        staged, step, found = self._staged(), -1, ""
        if staged is not None and staged.release is not None:
            step, found = staged.meta.step, self._content(ReleaseRecord(**staged.release))
        charged = self.ledger.charged_for(step, found)
        step = int(agreed(step if charged and step == self.ledger.released else -1)[0])
        if step >= 0:
            self.checkpoints.publish(step)

    def _interrupted_state(self, like: Halves, last: Meta) -> Halves | None:
        """What an interrupted run staged after its last release; None if there is nothing good.

        Nobody has seen it, so going on from it costs nothing.
        """
        staged, state = self._staged(), None
        follows = (
            staged is not None
            and staged.release is not None
            and (staged.release["first"], staged.release["before"]) == (last.step, last.digest)
            and not self._replayed
        )
        step = int(agreed(staged.meta.step if staged and follows else -1)[0])
        # The budget may have been spent by other runs since: then its steps cannot be shown.
        if step >= 0 and self.ledger.affordable(last.step, step) == step:
            with contextlib.suppress(RestoreCheckpointError):
                state, _ = self.checkpoints.restore(step, like, staged=True)
        if any_of(state is None):
            self.checkpoints.discard_staged()
            return None
        self._rows = staged.release["rows"] if staged and staged.release else []
        return state

    def _staged(self) -> Staged | None:
        """What the first process staged and did not publish, of this run and attempt."""
        staged = self.checkpoints.staged() if is_first() else None
        mine = (self.root.commitment, self.attempt)
        return staged if staged and (staged.meta.key, staged.meta.attempt) == mine else None

    def _content(self, release: ReleaseRecord) -> str:
        return content(release, self.root.row_key)

    def _check(self, meta: Meta) -> None:
        """Raises unless a checkpoint belongs to this run."""
        where = f"checkpoint {self.checkpoints.folder / str(meta.step)}"
        if meta.plan != self.plan.fingerprint():
            raise RestoreCheckpointError(
                f"{where} is of another plan: go on with the plan that the run was begun with, or "
                "begin another run"
            )
        check_commitment(self.root, meta.key, where)

    # Releasing.

    def last_release(self, step: int) -> int:
        """The step of the last checkpoint: before `step`, in a run that was interrupted."""
        return self._restored[0]

    def next_goal(self, step: int, stop: int) -> int:
        """Where the next release is due: by `stop`, or earlier, as far as the budget allows.

        Steps that are run again are released where they were before.
        """
        return self.ledger.affordable(step, min([stop, *(s for s in self._replayed if s > step)]))

    def release(
        self,
        step: int,
        begun: int,
        state: Halves,
        raw: list[Metrics],
        rows: list[str],
        evaluate: Callable[[], Any],
        show: Callable[[Metrics], None],
    ) -> None:
        """Begins to stage a checkpoint. `finish_release` charges and publishes it, and shows it.

        Args:
          begun: the step of the release before it. If it is `step`, the checkpoint is published
            already, and only what comes after it is made up for.
          rows: digests of the rows of the steps in between.
          evaluate: gives metrics; called when the steps are charged.
        """
        self.finish_release()
        record = None
        if step > begun:
            record = self._stage(step, begun, state, rows)
            self._before, self._rows = record.after, []
        self._pending = _Pending(step, record, raw, evaluate, show)

    def keep_unreleased(
        self, step: int, begun: int, state: Halves, raw: list[Metrics], rows: list[str]
    ) -> None:
        """Keeps a state without a release, because when a run is interrupted tells the time.

        Steps that are being run again are not kept: whether they are the same is not known yet.
        """
        self.finish_release()
        if step == begun or self._replayed:
            return
        self._stage(step, begun, state, rows)
        self.checkpoints.wait()
        if self._records:
            self._records.keep(raw)

    def _stage(self, step: int, begun: int, state: Halves, rows: list[str]) -> ReleaseRecord:
        """Begins to stage a state. Returns what it was made of."""
        after = digest_of(state)
        if self._replayed.pop(step, after) != after:
            raise ReplayDiffersError
        made = ReleaseRecord(
            self.attempt, begun, step, self._before, self._rows + rows, after, self.exactly
        )
        self.checkpoints.stage(state, self._meta(step, after), dataclasses.asdict(made))
        return made

    def finish_release(self, *, if_ready: bool = False) -> Metrics | None:
        """Waits for the staged checkpoint, charges, publishes, and shows. Returns the metrics.

        With `if_ready`, only if nobody has to wait. Several processes wait together, so they do it
        at the next release.
        """
        if self._pending is None:
            return None
        if if_ready and (jax.process_count() > 1 or self.checkpoints.is_saving()):
            return None
        pending, self._pending = self._pending, None
        if pending.release is not None:
            self.checkpoints.wait()
            with full_disk_explained(self.folder.private):
                self._releases.add(pending.release)
                if self._records:
                    self._records.keep(pending.raw)
            self.ledger.release(pending.step, self._content(pending.release))
            self.checkpoints.publish(pending.step)
            self._restored = (pending.step, self.attempt)
        line = {"step": pending.step, "epsilon": self.ledger.epsilon(self.delta)}
        line |= {"delta": self.delta, "attempt": self.attempt}
        line |= checked_metrics(pending.evaluate())
        if self._records:
            with full_disk_explained(self.folder.root):
                self._records.release(line)
                self.folder.forget_times()
        pending.show(line)
        return line

    def needs_metrics(self, step: int) -> bool:
        """Whether a checkpoint was published and its metrics were not: the run ended in between."""
        same = self._restored == (step, self.attempt)
        missing = self._records and same and step and not self._records.released(*self._restored)
        return bool(agreed(float(bool(missing)))[0])

    def _meta(self, step: int, digest: list[str]) -> Meta:
        return Meta(
            step=step,
            attempt=self.attempt,
            plan=self.plan.fingerprint(),
            key=self.root.commitment,
            ledger=self.ledger.head,
            digest=digest,
        )

    # Writing down what ran.

    def write_record(self, **what: Any) -> None:
        self.record.add_public(name=self.name, **what)

    def write_private_record(self, **what: Any) -> None:
        self.record.add_private(**what)

    def close(self) -> None:
        if is_first():
            self.folder.forget_times()
        for part in ("checkpoints", "_records", "_releases", "ledger"):
            opened = getattr(self, part, None)
            if opened is not None:
                opened.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> "FolderRun":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()
