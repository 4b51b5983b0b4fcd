"""`Releaser`: stages, charges and publishes the checkpoints of a run, and writes their metrics.

A release writes the following in this order. Each part is on disk before the next begins:

1. the raw metrics, and both halves of the checkpoint in the staging folder (`training.checkpoint`);
2. the record of how they were computed (`training.releases`);
3. the charge in the ledger, or a release mark if the steps were charged earlier;
4. the checkpoint is published by rename; then come evaluation, metrics and callbacks.

The training thread copies the arrays to the host. A second thread does the rest while the next
steps run, one release after the other. `finish_release` waits for it and raises its errors. With
several processes, which have to wait for each other, the training thread finishes each release
itself, and the second thread only prepares epsilon.
"""

import dataclasses
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax

from bevel.execution_plan import DPExecutionPlan, PlanSecrets
from bevel.training.checkpoint import Checkpoints, StateHalves, digest_of
from bevel.training.checkpoint_metadata import CheckpointMetadata
from bevel.training.folder import RunFolder, explained
from bevel.training.metrics_files import MetricsFiles, checked_metrics
from bevel.training.process_agreement import from_first_process
from bevel.training.releases import ReleaseRecord, Releases, content_digest
from bevel.training.resume import ReplayDiffersError
from bevel.training.run_ledger import RunLedger
from bevel.training.stopwatch import Stopwatch

Metrics = dict[str, Any]
THREAD = "bevel-release"


@dataclasses.dataclass
class _PendingRelease:
    """A checkpoint that is being staged, and what to do once it is complete."""

    step: int
    record: ReleaseRecord | None  # None if the checkpoint is already published
    raw: list[Metrics]
    evaluate: Callable[[], Any] | None
    show: Callable[[Metrics], None]
    prepared: Future[None] | None = None  # the computation of its epsilon
    line: Future[Metrics] | None = None  # its metrics, from the second thread


class Releaser:
    """Releases the checkpoints of a run, one at a time.

    Attributes:
      environment: what the exact result of a step depends on (`ReleaseRecord.exactly`).
      last_published: step and attempt of the last published checkpoint.
      last_digest: checksums of the state at the last release.
      earlier_rows: row digests since then, from before an interruption.
      replays: the checksums that repeated steps must reproduce, by the step after them.
      stopwatch: the seconds of the parts of a release, in the second thread.
    """

    def __init__(
        self,
        folder: RunFolder,
        plan: DPExecutionPlan,
        secrets: PlanSecrets,
        delta: float | None,
        *,
        ledger: RunLedger,
        checkpoints: Checkpoints,
        releases: Releases,
        metrics: MetricsFiles | None,
        check_in_place: Callable[[], None],
    ) -> None:
        self.folder, self.plan, self.secrets, self.delta = folder, plan, secrets, delta
        self.ledger, self.checkpoints = ledger, checkpoints
        self._releases, self._metrics = releases, metrics  # metrics in the first process only
        self._check_in_place = check_in_place  # raises if the folder was moved or replaced
        self.environment: dict[str, Any] = {}
        self.last_published = (0, 0)
        self.last_digest: list[str] = []
        self.earlier_rows: list[str] = []
        self.replays: dict[int, list[str]] = {}
        self.stopwatch = Stopwatch()
        self._pending: _PendingRelease | None = None
        self._prepared: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=THREAD)

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
        """Starts a release. The arrays may be donated once this returns.

        Args:
          first: the step of the previous release. If it equals `step`, the checkpoint is already
            published, and only evaluation, metrics and `show` are still missing.
          rows: the digests of the rows of the steps in between.
          evaluate: returns the metrics. `finish_release` calls it once the steps are charged.
          show: is called with the metrics once they are written, by `finish_release`.
        """
        self.finish_release()
        record = None
        if step > first:
            record = self._stage(step, first, state, rows)
            self.last_digest, self.earlier_rows = record.after, []
        pending = _PendingRelease(step, record, raw, evaluate, show, self._prepared)
        if jax.process_count() == 1:
            pending.line = self._thread.submit(self._charge_and_publish, pending)
        self._pending = pending

    @explained
    def keep_unreleased(
        self, step: int, first: int, state: StateHalves, raw: list[Metrics], rows: list[str]
    ) -> None:
        """Saves a state without releasing it, so that releases do not show the interruption.

        Released steps that are being run again are not saved: they are not verified yet.
        """
        self.finish_release()
        if step == first or self.replays:
            return
        self._stage(step, first, state, rows)
        if self._metrics:
            self._metrics.write_raw(raw)
        self.checkpoints.wait()

    def _stage(self, step: int, first: int, state: StateHalves, rows: list[str]) -> ReleaseRecord:
        """Starts staging a state. Returns the record of how it was computed."""
        self._check_in_place()
        before, after, rows = self.last_digest, digest_of(state), self.earlier_rows + rows
        if self.replays.pop(step, after) != after:
            raise ReplayDiffersError
        attempt = self.ledger.attempt
        record = ReleaseRecord(attempt, first, step, before, rows, after, self.environment)
        self.checkpoints.stage(state, self.metadata(step, after), dataclasses.asdict(record))
        return record

    def finish_release(self, *, if_ready: bool = False) -> Metrics | None:
        """Waits until the pending release is charged and published, and returns its metrics.

        Evaluates first if there is an `evaluate`. Returns None if nothing is pending, or, with
        `if_ready`, if this would have to wait.
        """
        pending = self._pending
        if pending is None:
            return None
        if if_ready and (pending.line is None or not pending.line.done()):
            return None
        self._pending = None
        line = self._charge_and_publish(pending) if pending.line is None else pending.line.result()
        if pending.evaluate is not None:
            line |= checked_metrics(pending.evaluate())
            self._write_metrics(line)
        pending.show(line)
        return line

    def _charge_and_publish(self, pending: _PendingRelease) -> Metrics:
        """Charges and publishes a staged checkpoint. Writes its metrics if nothing is missing."""
        part = self.stopwatch.part
        if pending.prepared is not None:
            pending.prepared.result()  # raises if it failed
        if pending.record is not None:
            with part("writing"):
                self._check_in_place()
                if self._metrics:  # first: a run that finds a complete checkpoint skips its steps
                    self._metrics.write_raw(pending.raw)
                self.checkpoints.wait()
                self._releases.add(pending.record)
            with part("ledger"):
                self.ledger.release(pending.step, self.content(pending.record))
            with part("publishing"):
                self.checkpoints.publish(pending.step)
            self.last_published = (pending.step, self.ledger.attempt)
        with part("epsilon"):
            line: Metrics = {"step": pending.step, "epsilon": self.ledger.epsilon(self.delta)}
        line |= {"delta": self.delta, "attempt": self.ledger.attempt}
        if pending.evaluate is None:
            with part("publishing"):
                self._write_metrics(line)
        return line

    def _write_metrics(self, line: Metrics) -> None:
        if self._metrics:
            self._metrics.write_metrics(line)
            self.folder.reset_times()

    def prepare(self, step: int) -> None:
        """Computes the epsilon of the next release in the second thread."""
        self._prepared = self._thread.submit(self._prepare, step)

    def _prepare(self, step: int) -> None:
        with self.stopwatch.part("epsilon"):
            self.ledger.prepare(step, self.delta)

    def needs_metrics(self, step: int) -> bool:
        """Returns whether the process ended after publishing this step, before its metrics."""
        last = self.last_published
        same = last == (step, self.ledger.attempt)
        missing = self._metrics and same and step and not self._metrics.has_metrics(*last)
        return bool(from_first_process(float(bool(missing)))[0])

    def content(self, release: ReleaseRecord) -> str:
        """The digest of a release for the ledger."""
        return content_digest(release, self.secrets.row_key)

    def metadata(self, step: int, digest: list[str]) -> CheckpointMetadata:
        """The metadata of a checkpoint that is staged now."""
        plan, key = self.plan.fingerprint(), self.secrets.commitment
        return CheckpointMetadata(step, self.ledger.attempt, plan, key, self.ledger.head, digest)

    def close(self) -> BaseException | None:
        """Ends the second thread. Returns the error of a release that was not waited for, if any.

        A release that is under way is completed. One that has not begun is dropped.
        """
        pending, self._pending = self._pending, None
        try:
            self._thread.shutdown(wait=True, cancel_futures=True)
        except BaseException:  # Ctrl-C: the ledger and the lock are closed next, so wait once more
            self._thread.shutdown(wait=True, cancel_futures=True)
            raise
        if pending is None or pending.line is None or pending.line.cancelled():
            return None
        return pending.line.exception()
