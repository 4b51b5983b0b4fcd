"""One run in a ledger, which charges steps before they are released."""

import collections
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bevel.accounting.ledger.entries import Charge, Release
from bevel.accounting.ledger.event_json import event_to_json
from bevel.accounting.ledger.totals import RunTotals
from bevel.checks import whole_number
from bevel.errors import StopRunError

if TYPE_CHECKING:
    from dp_accounting import DpEvent

    from bevel.accounting.ledger.ledger import Ledger


class LedgerRun:
    """One run in a ledger, created by `Ledger.run`. Its state is always read from the ledger."""

    def __init__(self, ledger: "Ledger", name: str, plan: str, key: str) -> None:
        self.ledger, self.name, self.plan, self.key = ledger, name, plan, key

    @property
    def _totals(self) -> RunTotals | None:
        return self.ledger._totals.runs.get(self.name)

    @property
    def charged_until(self) -> int:
        """Steps before this one are charged, by this attempt or an earlier one."""
        return 0 if self._totals is None else self._totals.charged_until

    @property
    def released_until(self) -> int:
        """Steps before this one count as released by the current attempt; 0 before any charge."""
        return 0 if self._totals is None else self._totals.released_until

    @property
    def attempt(self) -> int:
        """The attempt of the last charge; 0 before any charge."""
        return 0 if self._totals is None else self._totals.last.attempt

    @property
    def attempt_charged(self) -> tuple[int, int]:
        """The first step of the current attempt, and the step after the last one it charged.

        Both are 0 before any charge.
        """
        totals = self._totals
        return (0, 0) if totals is None else (totals.attempt_first, totals.last.stop)

    def affords(
        self,
        first: int,
        stop: int,
        event: "DpEvent | Mapping[str, Any]",
        *,
        attempt: int | None = None,
        look_ahead: bool = True,
    ) -> bool:
        """Returns whether `charge` with these arguments is within the budget. Writes nothing.

        By default, also finds out how often the event could be charged again, so that later charges
        need no accounting. Pass `look_ahead=False` for the last charge of a run.
        """
        try:
            charge = self._charge(first, stop, event, attempt, None)
            self.ledger._check(charge, look_ahead=look_ahead)
        except StopRunError:
            return False
        return True

    def counts_with(
        self,
        first: int,
        stop: int,
        event: "DpEvent | Mapping[str, Any]",
        *,
        attempt: int | None = None,
    ) -> collections.Counter[str]:
        """Returns how often each event is spent after such a charge. Writes nothing."""
        return self.ledger._totals.events(self._charge(first, stop, event, attempt, None))

    def counts(self) -> collections.Counter[str]:
        """Returns how often each event was spent, by all runs of the ledger."""
        return self.ledger._totals.events()

    def charge(
        self,
        first: int,
        stop: int,
        event: "DpEvent | Mapping[str, Any]",
        *,
        attempt: int | None = None,
        released: int | None = None,
        content: str = "",
    ) -> None:
        """Charges the steps `first`, ..., `stop - 1`. The charge is on disk when this returns.

        Call it before anything computed from those steps leaves the trainer. The range may cover
        later steps too, such as the whole run if its steps only have a joint event.

        Args:
          event: what all these steps release together, or its `event_to_json`.
          attempt: the current attempt (`run.attempt`) by default. Use `run.attempt + 1` for steps
            that are run again with fresh noise.
          released: the step after the last one that is released now, by default `stop`. Call
            `release` before you release more of the charged steps.
          content: a keyed digest (32 hexadecimal digits) of what is released. With it, `content_of`
            shows later whether a result is the one that was charged.

        See totals.py for the order of charges. Raises `StopRunError`, and writes nothing, if the
        charge would exceed the budget.
        """
        self.ledger._append(self._charge(first, stop, event, attempt, released, content))

    def release(self, stop: int, *, attempt: int | None = None, content: str = "") -> None:
        """Marks the steps before `stop` as released. The mark is on disk when this returns.

        Call it before steps that were charged earlier leave the trainer. It costs no privacy and
        needs no accounting. If the steps are already marked, nothing is written. Raises
        `FixArgumentsError` for steps that the attempt has not charged.
        """
        number = self.attempt if attempt is None else whole_number("attempt", attempt, 0)
        entry = Release(
            self.name, self.plan, self.key, number, whole_number("stop", stop, 0), content
        )
        self.ledger._totals.check(entry)
        if entry.stop > self.released_until:
            self.ledger._append(entry)

    def content_of(self, stop: int) -> str:
        """Returns the digest of the current attempt's release up to `stop`, or an empty string."""
        return "" if self._totals is None else self._totals.contents.get(stop, "")

    def _charge(
        self,
        first: int,
        stop: int,
        event: "DpEvent | Mapping[str, Any]",
        attempt: int | None,
        released: int | None,
        content: str = "",
    ) -> Charge:
        return Charge(
            run=self.name,
            plan=self.plan,
            key=self.key,
            attempt=self.attempt if attempt is None else whole_number("attempt", attempt, 0),
            first=whole_number("first", first, 0),
            stop=whole_number("stop", stop, 0),
            event=event_to_json(event),
            released=None if released is None else whole_number("released", released, 0),
            content=content,
        )
