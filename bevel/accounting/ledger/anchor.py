"""The head of a ledger, kept on other storage: it shows when the ledger was rolled back.

A copy of an old ledger is a sound chain, and so is one without its last lines. Whoever restores a
folder from a backup restores its ledger and its checkpoints together, and nothing in the folder
tells. An anchor elsewhere does.
"""

import json
import os
import re
import warnings
from collections.abc import Sequence
from pathlib import Path

from bevel.accounting.ledger.durable_files import replace_file
from bevel.errors import FixArgumentsError, RestoreLedgerError

HASH = re.compile("[0-9a-f]{64}")


class Anchor:
    """A small file `{"head": hash of a ledger's last line, "lines": how many it has}`.

    It is replaced after every line of the ledger. A process that is killed in between leaves the
    head of an earlier line, which is still one of the ledger's.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.resolve().parent.is_dir():
            raise FixArgumentsError(
                f"the anchor {self.path}: there is no such folder. Make it, or mount it, first."
            )

    def check_begun(self, ledger: Path) -> None:
        """Raises if there is an anchor and no ledger: one that is begun anew would forget all."""
        if self.path.resolve() == ledger.resolve():
            raise FixArgumentsError(
                f"{ledger} cannot be its own anchor: give a file on other storage."
            )
        anchored = self.path.exists()  # first: a ledger is begun before its anchor
        if anchored and not ledger.exists():
            raise RestoreLedgerError(
                f"there is no ledger at {ledger}, and {self.path} is the anchor of one: it was "
                "moved or removed. Restore it from a copy. For another ledger, give another anchor."
            )

    def check(self, hashes: Sequence[str], ledger: Path) -> None:
        """Raises unless the anchored line is one of the ledger's, whose hashes are given."""
        try:
            written = self.path.read_bytes()
        except FileNotFoundError:
            if len(hashes) > 1:
                warnings.warn(
                    f"{ledger} has {len(hashes)} lines and had no anchor at {self.path}: it gets "
                    "one now. Whether it was rolled back before cannot be told.",
                    stacklevel=3,
                )
            return
        head, lines = self._read(written)
        if not (lines <= len(hashes) and hashes[lines - 1] == head):
            raise RestoreLedgerError(
                f"the anchor {self.path} holds line {lines} with the hash {head}, and {ledger}, of "
                f"{len(hashes)} lines, has none such: it was rolled back, cut off or exchanged, so "
                "what was spent is not known. Restore the ledger that belongs to the anchor."
            )

    def _read(self, written: bytes) -> tuple[str, int]:
        try:
            content = json.loads(written)
            head, lines = content["head"], content["lines"]
            sound = set(content) == {"head", "lines"} and type(lines) is int and lines > 0
            if not (sound and HASH.fullmatch(head)):
                raise ValueError("not a head and a number of lines")
        except (ValueError, KeyError, TypeError) as error:
            raise RestoreLedgerError(
                f"{self.path} is not the anchor of a ledger ({error}): it is left as it is. "
                "Restore it from a copy."
            ) from error
        return head, lines

    def write(self, hashes: Sequence[str]) -> None:
        """Anchors the last line; on disk when it returns."""
        content = {"head": hashes[-1], "lines": len(hashes)}
        replace_file(self.path, json.dumps(content).encode() + b"\n")
