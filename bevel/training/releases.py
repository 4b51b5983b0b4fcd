"""Records how each release was computed, to verify that steps are run again exactly.

A line of `private/releases.jsonl` is on disk before its steps are charged. It has a keyed digest of
the rows that each step read, the checksums of the resulting state, and the program, versions and
devices that computed it. The ledger has a keyed digest of the line, so a copy of the folder that
computed something else cannot use the same charge.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bevel.accounting.ledger.hash_chain import canonical
from bevel.training.metrics_files import JsonLines, damaged_line, read_lines
from bevel.training.process_agreement import any_process


@dataclasses.dataclass(frozen=True)
class ReleaseRecord:
    """One release: the steps `first` to `stop - 1` of an attempt.

    Attributes:
      before: checksums of the state before the first step.
      rows: for each step, a digest of the rows that it read, keyed with the run's secrets.
      after: checksums of the state after the last step.
      exactly: the environment that the bits of a step depend on: program, versions, devices.
    """

    attempt: int
    first: int
    stop: int
    before: list[str]
    rows: list[str]
    after: list[str]
    exactly: dict[str, Any]


def content_digest(release: ReleaseRecord, key: bytes) -> str:
    """Returns the keyed digest for the ledger. It reveals nothing without the key."""
    text = canonical(dataclasses.asdict(release))
    return hashlib.blake2b(text, key=key, person=b"bevel release", digest_size=16).hexdigest()


def parse_release(line: Any, path: Path, number: int) -> ReleaseRecord:
    """Converts a line of the file. Raises if fields are missing or have the wrong types."""
    types = {"attempt": int, "first": int, "stop": int, "exactly": dict}
    types |= dict.fromkeys(("before", "rows", "after"), list)
    complete = isinstance(line, dict) and set(line) == set(types)
    if not complete or not all(isinstance(line[name], kind) for name, kind in types.items()):
        raise damaged_line(path, number)
    return ReleaseRecord(**line)


class Releases:
    """The file of release records. Some may never be charged, because they are added before."""

    def __init__(self, path: Path, *, write: bool) -> None:
        lines = enumerate(read_lines(path), 1)
        self._records = [parse_release(line, path, number) for number, line in lines]
        self._known = {content_digest(record, b"") for record in self._records}
        self._lines = JsonLines(path, private=True) if write else None

    def add(self, release: ReleaseRecord) -> None:
        """Writes a record, unless the file has it. The cost does not depend on the others."""
        content = content_digest(release, b"")
        if content in self._known:
            return
        if self._lines:
            self._lines.add(dataclasses.asdict(release))
        self._known.add(content)
        self._records.append(release)

    def between(self, first: int, stop: int, attempt: int) -> list[ReleaseRecord]:
        """Returns the releases of an attempt from `first` to `stop`, or [] if one is missing."""
        chain: list[ReleaseRecord] = []
        records = [r for r in self._records if r.attempt == attempt and r.stop <= stop]
        while first < stop:
            candidates = [r for r in records if r.first == first]
            if not candidates:
                return []
            chain.append(candidates[-1])
            first = candidates[-1].stop
        return chain

    def close(self) -> None:
        if self._lines:
            self._lines.close()


def differences(
    recorded: Iterable[ReleaseRecord],
    before: list[str],
    environment: dict[str, Any],
    rows_between: Callable[[int, int], list[str]],
) -> list[str]:
    """Describes what differs from the record. Empty if the same steps can be run again exactly.

    Processes may differ in their environment, but have to decide alike: fresh noise in only some of
    them would not be the noise that is accounted. All processes must call this.
    """
    recorded = list(recorded)
    found: dict[str, None] = {}  # an ordered set
    if not recorded:
        found["there is no record of how they were computed"] = None
    elif recorded[0].before != before:
        found["the state that they started from differs"] = None
    for release in recorded:
        for name in sorted(release.exactly.keys() | environment.keys()):
            then, now = release.exactly.get(name), environment.get(name)
            if then != now:
                found[describe_change(name, then, now)] = None
    if any_process(bool(found)):  # before the rows, which all processes read together
        return list(found) or ["something differs in another process"]
    rows = [row for release in recorded for row in release.rows]
    if rows_between(recorded[0].first, recorded[-1].stop) != rows:
        return ["the rows that they read differ"]
    return []


def describe_change(name: str, before: Any, now: Any) -> str:
    """Describes a difference. The values of digests are left out."""
    if isinstance(now, dict) and isinstance(before, dict):
        parts = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
        return ", ".join(f"{name}.{key} {before.get(key)} -> {now.get(key)}" for key in parts)
    if isinstance(now, str) and len(now) == 64:
        return f"the {name} differs"
    return f"{name} {before} -> {now}"
