"""Keeps the head of a ledger on other storage, to detect a ledger that was rolled back.

An old copy of a ledger is a valid hash chain, and so is a ledger without its last lines. If a run
folder is restored from a backup, its ledger and checkpoints agree, so nothing in the folder shows
that later charges are missing. An anchor on other storage does.
"""

import json
import os
import re
import warnings
from pathlib import Path

from bevel.accounting.ledger.durable_files import replace_file
from bevel.accounting.ledger.hash_chain import LineHashes
from bevel.errors import FixArgumentsError, RestoreLedgerError
from bevel.file_errors import explain_file_errors

HASH = re.compile("[0-9a-f]{64}")


class Anchor:
    """A small file `{"head": hash of the ledger's last line, "lines": number of lines}`.

    It is replaced after every line of the ledger. A process that is killed in between leaves the
    head of an earlier line, which is still valid because that line is in the ledger.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.resolve().parent.is_dir():
            raise FixArgumentsError(
                f"the folder of the anchor {self.path} does not exist. Create it or mount it first."
            )

    def check_ledger_exists(self, ledger: Path) -> None:
        """Raises if the anchor exists but not its ledger: a new ledger would forget all charges."""
        if self.path.resolve() == ledger.resolve():
            raise FixArgumentsError(
                f"{ledger} cannot be its own anchor. Pass a path on other storage."
            )
        # In this order, because another process may be creating the ledger and then its anchor.
        if self.path.exists() and not ledger.exists():
            raise RestoreLedgerError(
                f"there is no ledger at {ledger}, but {self.path} is the anchor of one: the ledger "
                "was moved or removed. Restore it from a copy. For a new ledger, pass a new anchor."
            )

    def lines(self) -> int | None:
        """The number of lines that the anchor records. None if there is no anchor yet."""
        with explain_file_errors(self.path):
            return self._parse(self.path.read_bytes())[1] if self.path.exists() else None

    def check(self, hashes: LineHashes, ledger: Path) -> None:
        """Raises unless the anchored line is in the ledger, whose line hashes are `hashes`."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            if len(hashes) > 1:
                warnings.warn(
                    f"{ledger} has {len(hashes)} lines and had no anchor at {self.path}. One is "
                    "created now; it cannot show whether the ledger was rolled back before.",
                    stacklevel=3,
                )
            return
        head, lines = self._parse(data)
        if not (lines <= len(hashes) and hashes[lines - 1] == head):
            raise RestoreLedgerError(
                f"the anchor {self.path} records line {lines} with hash {head}, but {ledger} "
                f"({len(hashes)} lines) has no such line: it was rolled back, truncated or replaced"
                ", so what was spent is unknown. Restore the ledger that belongs to the anchor."
            )

    def _parse(self, data: bytes) -> tuple[str, int]:
        try:
            content = json.loads(data)
            head, lines = content["head"], content["lines"]
            valid = set(content) == {"head", "lines"} and type(lines) is int and lines > 0
            if not (valid and HASH.fullmatch(head)):
                raise ValueError("not a head and a number of lines")
        except (ValueError, KeyError, TypeError) as error:
            raise RestoreLedgerError(
                f"{self.path} is not the anchor of a ledger, or is damaged ({error}). It was not "
                "changed. Restore it from a copy."
            ) from error
        return head, lines

    def write(self, hashes: LineHashes) -> None:
        """Records the last line. The anchor is on disk when this returns."""
        content = {"head": hashes.head, "lines": len(hashes)}
        with explain_file_errors(self.path):
            replace_file(self.path, json.dumps(content).encode() + b"\n")
