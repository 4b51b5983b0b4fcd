"""What each release was made of: the record by which steps are proven to be run again exactly.

A line of `private/releases.jsonl` is on disk before its steps are charged. It has a keyed digest of
the rows that each step read, the checksums of the state that came out, and the program, versions
and devices it was computed with. The ledger has a digest of the line, so a copy of the folder that
went another way cannot take a charge for its own.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bevel.accounting.ledger.hash_chain import canonical
from bevel.training.metrics_files import JsonLines, damaged, read_lines


@dataclasses.dataclass(frozen=True)
class ReleaseRecord:
    """One release: the steps `first` to `stop - 1` of an attempt.

    Attributes:
      before: checksums of the state before the first step.
      rows: a digest for each step, keyed with the run's secrets, of the rows that it read.
      after: checksums of the state after the last step.
      exactly: what the bits of a step depend on, beside its rows and the state before it.
    """

    attempt: int
    first: int
    stop: int
    before: list[str]
    rows: list[str]
    after: list[str]
    exactly: dict[str, Any]


def content(release: ReleaseRecord, key: bytes) -> str:
    """What a ledger says of a release: a keyed digest, which tells nothing without the key."""
    text = canonical(dataclasses.asdict(release))
    return hashlib.blake2b(text, key=key, person=b"bevel release", digest_size=16).hexdigest()


def made(line: Any, path: Path, number: int) -> ReleaseRecord:
    """The release that a line has, with fields of the right kinds."""
    hints = {"attempt": int, "first": int, "stop": int, "exactly": dict}
    hints |= dict.fromkeys(("before", "rows", "after"), list)
    known = isinstance(line, dict) and set(line) == set(hints)
    if not known or not all(isinstance(line[name], kind) for name, kind in hints.items()):
        raise damaged(path, number)
    return ReleaseRecord(**line)


class Releases:
    """The file. Lines are added before anything is charged, so some may never have been."""

    def __init__(self, path: Path, *, write: bool) -> None:
        self._made = [made(line, path, number) for number, line in enumerate(read_lines(path), 1)]
        self._lines = JsonLines(path, private=True) if write else None

    def add(self, release: ReleaseRecord) -> None:
        if release in self._made:
            return
        if self._lines:
            self._lines.add(dataclasses.asdict(release))
        self._made.append(release)

    def between(self, first: int, stop: int, attempt: int) -> list[ReleaseRecord]:
        """The releases of an attempt from one step to another; none if one is missing."""
        found, at = [], first
        while at < stop:
            fitting = [
                r for r in self._made if (r.attempt, r.first) == (attempt, at) and r.stop <= stop
            ]
            if not fitting:
                return []
            found.append(fitting[-1])
            at = found[-1].stop
        return found

    def close(self) -> None:
        if self._lines:
            self._lines.close()


def differences(
    recorded: Iterable[ReleaseRecord],
    before: list[str],
    exactly: dict[str, Any],
    rows_between: Callable[[int, int], list[str]],
) -> list[str]:
    """What is not as it was recorded, in words; empty if the same steps can be run again."""
    recorded = list(recorded)
    if not recorded:
        return ["there is no record of what they were made of"]
    found: dict[str, None] = {}
    if recorded[0].before != before:
        found["the state that they began with is not the same"] = None
    for release in recorded:
        for name in sorted(release.exactly.keys() | exactly.keys()):
            then, now = release.exactly.get(name), exactly.get(name)
            if then != now:
                found[changed(name, then, now)] = None
    rows = [row for release in recorded for row in release.rows]
    if not found and rows_between(recorded[0].first, recorded[-1].stop) != rows:
        found["the rows that they read are not the same"] = None
    return list(found)


def changed(name: str, before: Any, now: Any) -> str:
    """A difference in words. Digests are not shown: they tell nothing."""
    if isinstance(now, dict) and isinstance(before, dict):
        parts = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
        return ", ".join(f"{name}.{key} {before.get(key)} -> {now.get(key)}" for key in parts)
    if isinstance(now, str) and len(now) == 64:
        return f"the {name} differs"
    return f"{name} {before} -> {now}"
