"""The folder of a search: what may be shown, and what must stay secret.

    SEARCH/released/       may be shown to anyone, once the search is complete
      run.json             the settings, the model's run, and how it was tuned
      checkpoints/STEP/    the parameters of the best trial
      metrics.jsonl        the epsilon of the search, and the score of the best trial
      ledger.jsonl         what was spent (you can choose another path)
    SEARCH/private/        only for the owner: mode 0700
      search.json          what is searched, to compare when the search is started again
      data                 a keyed digest of the data
      secrets.json         the seed of the number of trials and of their settings
      ledger_head          the hash of the ledger's line that charged the search
      spent                the epsilon of the ledger after that line
      scores.json          the score of every trial that is complete
      trials/NUMBER/       the run folder of each trial, with a ledger of its own
      discarded/           a trial that is run again, until it is removed
      best/                the best trial, until it is published
      lock                 held while the search runs

The number of trials, and which of them was the best, must stay secret: the price of the search does
not cover them. The charge is on disk before the first trial begins.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dp_accounting import DpEvent

from bevel.accounting import Budget, Ledger
from bevel.accounting.ledger.durable_files import sync_folder, sync_tree
from bevel.accounting.ledger.hash_chain import canonical
from bevel.errors import FixArgumentsError, RestoreCheckpointError, RestoreLedgerError
from bevel.execution_plan import DPExecutionPlan, PlanSecrets
from bevel.training.folder import (
    CHECKPOINTS,
    LEDGER,
    LEDGER_HEAD,
    METRICS,
    NO_TIME,
    RELEASED,
    RUN,
    SECRETS,
    RunFolder,
    explained,
    make_private_folder,
    write_atomically,
)
from bevel.training.run_json import damaged, read_record
from bevel.training.run_options import RunOptions
from bevel.training.secrets import read_secrets, write_secrets

SEARCH, SCORES, TRIALS, BEST, DATA = "search.json", "scores.json", "trials", "best", "data"
SPENT, DISCARDED = "spent", "discarded"


def _fingerprint(identity: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(dict(identity))).hexdigest()


class SearchFolder:
    """The folder of a search, locked. Use it as a context manager.

    Args:
      plan: the costliest plan of the space.
      event: the event of the search.
      budget: the budget of a new ledger, unless the options have one.
      steps: the most steps of a trial, which may be more than those of the costliest plan.
    """

    def __init__(
        self,
        root: Path,
        plan: DPExecutionPlan,
        event: DpEvent,
        budget: Budget,
        options: RunOptions,
        steps: int,
    ) -> None:
        self.folder, self.plan, self.event, self.options = RunFolder(root), plan, event, options
        self.released, self.private = self.folder.released, self.folder.private
        self.ledger_path = Path(options.ledger or self.released / LEDGER)
        self.name = options.name or root.absolute().name
        self._budget, self._steps = budget, steps
        if (self.private / "identity.json").exists():
            raise FixArgumentsError(
                f"{root} has a training run: pass another folder to the search."
            )
        self._lock = self.folder.open()
        try:
            self._tidy()
        except BaseException:
            os.close(self._lock)
            raise

    @explained
    def _tidy(self) -> None:
        self.folder.remove_leftovers()
        if self.is_complete:  # if it was killed since, its times show how many trials ran
            self.folder.reset_times()

    @property
    @explained
    def is_complete(self) -> bool:
        return (self.released / RUN).exists()

    # What is searched, and the charge.

    @explained
    def begin(
        self, identity: Mapping[str, Any], settings: Mapping[str, Any] | None = None
    ) -> PlanSecrets:
        """Charges a new search, or checks that an old one is the same. Returns its secrets.

        `settings` has the recorded settings that are not searched, by name. They do not affect the
        price, but if they changed, trials would differ by the time at which they ran.
        """
        secrets, named = self._secrets(), {"settings": dict(settings or {})}
        found = {"search": dict(identity), "key": secrets.commitment} | named
        text, path = json.dumps(found, indent=2, sort_keys=True), self.private / SEARCH
        if not path.exists():
            write_atomically(path, text, private=True)
        before, now = read_record(path), json.loads(text)
        changed = []
        for part in ("search", "settings"):
            old, new = before.get(part), now[part]
            if not isinstance(old, dict):
                raise damaged(path)
            changed += [name for name in sorted({**old, **new}) if old.get(name) != new.get(name)]
        if changed or before.get("key") != secrets.commitment:
            names = ", ".join(changed) or "key"
            raise RestoreCheckpointError(
                f"{self.folder.root} has a search with other values of {names}, and a search must "
                "not change. Start it again with the earlier values, or start a new search in "
                "another folder, which is charged too."
            )
        self._charge(_fingerprint(identity), secrets.commitment)
        return secrets

    @explained
    def check_result(self, identity: Mapping[str, Any]) -> None:
        """Raises unless the result is of this search: another search has another price."""
        plan = read_record(self.released / RUN).get("plan")
        if not isinstance(plan, dict) or plan.get("fingerprint") != _fingerprint(identity):
            raise RestoreCheckpointError(
                f"{self.folder.root} has the result of another search, with other values of the "
                "space, the trials, the event or the parameters. Use the earlier values, or start "
                "a new search in another folder, which is charged too."
            )

    def _secrets(self) -> PlanSecrets:
        """The secrets of the search. They are on disk before anything is drawn from them."""
        path = self.private / SECRETS
        if not path.exists():
            if (self.private / SEARCH).exists() or (self.private / TRIALS).exists():
                raise RestoreCheckpointError(
                    f"{path} is missing: without it, the number of trials would be drawn again, "
                    "and the result would not be private. Restore it, or start a new search."
                )
            if self.ledger_path.exists() and self.name in Ledger.read(self.ledger_path).runs:
                raise FixArgumentsError(
                    f"the ledger {self.ledger_path} already has a run {self.name!r}, but "
                    f"{self.folder.root} is empty. A search in a new folder is a new search, which "
                    "is charged too: give it another name with RunOptions(name=...)."
                )
            write_secrets(path, PlanSecrets.new())
        return read_secrets(path)

    def _charge(self, fingerprint: str, key: str) -> None:
        """Charges the whole search once. The charge is on disk when this returns."""
        head_path, path = self.private / LEDGER_HEAD, self.ledger_path
        head = head_path.read_text(errors="replace") if head_path.exists() else None
        if head is not None and not path.exists():
            raise RestoreLedgerError(
                f"the ledger {path} is missing, but this search was charged in it. Restore the "
                "ledger: without it, it is unknown what was spent."
            )
        with self._opened_ledger() as ledger:
            if ledger.line_count == 1 and path.parent.name == RELEASED:
                path.chmod(0o644)
            if head is not None:
                ledger.check_head(head)
            run = ledger.run(self.name, plan=fingerprint, key=key)
            if run.charged_until == 0:
                run.charge(0, self._steps, self.event)
            if head is None:
                # Not at the end of the search: with charges that other runs add meanwhile, the
                # released epsilon would show how long it took, and so how many trials there were.
                spent = ledger.spent(self._budget.delta).epsilon
                write_atomically(self.private / SPENT, repr(spent), private=True)
                write_atomically(head_path, ledger.head, private=True)

    def _opened_ledger(self) -> Ledger:
        budget = self.options.budget
        if budget is None:
            exists = self.ledger_path.exists()
            budget = Ledger.read(self.ledger_path).terms.budget if exists else self._budget
        return Ledger.open(
            self.ledger_path,
            unit=self.plan.unit.name,
            relation=self.plan.neighboring_relation,
            budget=budget,
            anchor=self.options.anchor,
        )

    @explained
    def check_data(self, digest: str) -> None:
        """Raises unless this keyed digest of the data equals the one of the first start."""
        path = self.private / DATA
        if not path.exists():
            write_atomically(path, digest, private=True)
        if path.read_text(errors="replace") != digest:
            raise RestoreCheckpointError(
                f"the search in {self.folder.root} began with other data: start it again with "
                "that data, or start a new search in another folder."
            )

    # Trials.

    @explained
    def trial(self, number: int) -> Path:
        make_private_folder(self.private / TRIALS)
        return self.private / TRIALS / str(number)

    @explained
    def scores(self) -> dict[int, float]:
        """The scores of the trials that are complete."""
        path = self.private / SCORES
        if not path.exists():
            return {}
        record = read_record(path)
        try:
            return {int(number): float(text) for number, text in record.items()}
        except (TypeError, ValueError) as error:
            raise damaged(path) from error

    @explained
    def discard_trial(self, number: int) -> None:
        """Removes a trial. Even if this is interrupted, no part of it is left under its name."""
        old = self.private / DISCARDED
        if old.exists():
            shutil.rmtree(old)
        self.trial(number).rename(old)
        shutil.rmtree(old)

    @explained
    def add_score(self, number: int, score: float) -> None:
        scores = self.scores() | {number: score}
        text = json.dumps({str(n): repr(s) for n, s in scores.items()})
        write_atomically(self.private / SCORES, text, private=True)

    # The result.

    @explained
    def publish(
        self, best: Path | None, record: Mapping[str, Any], metrics: Mapping[str, Any]
    ) -> None:
        """Releases the newest checkpoint of the best trial, and the record of the search.

        The record is written last and marks the search as complete. If this is interrupted before,
        call it again.
        """
        staged, target = self.private / BEST, self.released / CHECKPOINTS
        if best is not None and not target.exists():
            shutil.rmtree(staged, ignore_errors=True)
            checkpoints = best / RELEASED / CHECKPOINTS
            newest = max(checkpoints.iterdir(), key=lambda path: int(path.name))
            shutil.copytree(newest, staged / newest.name)
            os.utime(staged, (NO_TIME, NO_TIME))
            sync_tree(staged)
            staged.rename(target)
            sync_folder(target)
        ledger = os.path.relpath(self.ledger_path, self.released)
        lines = json.dumps(dict(metrics)) + "\n" if metrics else ""
        write_atomically(self.released / METRICS, lines, private=False)
        found = dict(record) | {"name": self.name, "ledger": ledger}
        plan = dict(found.get("plan") or {})
        # The ledger has the fingerprint of the search, which covers the plans of all trials.
        found["plan"] = plan | {"fingerprint": self._charged_plan()}
        text = json.dumps(found, indent=2)
        write_atomically(self.released / RUN, text, private=False)
        self.folder.reset_times()

    def _charged_plan(self) -> str:
        return Ledger.read(self.ledger_path)._totals.runs[self.name].last.plan

    @property
    @explained
    def spent(self) -> float:
        """The epsilon of everything that was charged to the ledger up to this search."""
        path = self.private / SPENT
        try:
            return float(path.read_text(errors="replace"))
        except ValueError as error:
            raise damaged(path) from error

    def __enter__(self) -> "SearchFolder":
        return self

    def __exit__(self, *error: Any) -> None:
        os.close(self._lock)
