"""One run of a ledger: it charges steps before they are released."""

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
    """One run of a ledger, of `Ledger.run`. All that it says is read from the ledger."""

    def __init__(self, ledger: "Ledger", name: str, plan: str, key: str) -> None:
        self.ledger, self.name, self.plan, self.key = ledger, name, plan, key

    @property
    def _books(self) -> RunTotals | None:
        return self.ledger._books.runs.get(self.name)

    @property
    def charged_until(self) -> int:
        """Steps before this one are charged, by this attempt or an earlier one."""
        return 0 if self._books is None else self._books.reached

    @property
    def released_until(self) -> int:
        """Steps before this one count as released by the present attempt; 0 before any charge."""
        return 0 if self._books is None else self._books.released

    @property
    def attempt(self) -> int:
        """The attempt that the last charge was for; 0 before any."""
        return 0 if self._books is None else self._books.last.attempt

    @property
    def attempt_charged(self) -> tuple[int, int]:
        """The first step of the present attempt, and the step after the last one that it charged.

        Both 0 before any charge.
        """
        return (0, 0) if self._books is None else (self._books.begun, self._books.last.stop)

    def affords(
        self,
        first: int,
        stop: int,
        event: "DpEvent | Mapping[str, Any]",
        *,
        attempt: int | None = None,
    ) -> bool:
        """Whether `charge` with these arguments is within the budget. Writes nothing."""
        try:
            self.ledger._check(self._charge(first, stop, event, attempt, None))
        except StopRunError:
            return False
        return True

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
        """Charges the steps `first`, ..., `stop - 1`, and is on disk when it returns.

        Call it before anything computed from those steps leaves the trainer. A range may reach
        ahead: to the end of the run, say, if its steps have only one event together.

        Args:
          event: what these steps release, all of them together; or its `event_to_json`.
          attempt: by default the present one, `run.attempt`; one more, for steps that are run
            again with fresh noise.
          released: the step after the last one that is released now; by default `stop`. Call
            `release` before more of the charged steps are.
          content: a keyed digest of what is released (32 hexadecimal digits), by which
            `content_of` tells later whether a result is the one that was charged for.

        Which charge may follow which is in totals.py. Raises `StopRunError` if the budget would be
        exceeded; nothing is written then.
        """
        self.ledger._append(self._charge(first, stop, event, attempt, released, content))

    def release(self, stop: int, *, attempt: int | None = None, content: str = "") -> None:
        """Marks the steps before `stop` as released, and is on disk when it returns.

        Call it before steps that an earlier charge paid for leave the trainer. It costs no privacy
        and needs no accounting; if the ledger says so already, nothing is written. Raises
        `FixArgumentsError` for steps that the attempt has not charged.
        """
        number = self.attempt if attempt is None else whole_number("attempt", attempt, 0)
        mark = Release(
            self.name, self.plan, self.key, number, whole_number("stop", stop, 0), content
        )
        self.ledger._books.check(mark)
        if mark.stop > self.released_until:
            self.ledger._append(mark)

    def content_of(self, stop: int) -> str:
        """The digest with which the present attempt released steps up to `stop`; empty if none."""
        return "" if self._books is None else self._books.contents.get(stop, "")

    def _charge(
        self,
        first: int,
        stop: int,
        event: Any,
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
