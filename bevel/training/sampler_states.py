"""What samplers remember of earlier steps, saved at every checkpoint, so that none is drawn again.

    private/sampler_states/ATTEMPT-STEP    the batches that still rest before this step

Only samplers with a minimum separation have such a state. It tells who was sampled, so it is
private. It follows from the seed: if a file is missing or damaged, the steps are drawn again.
"""

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np

from bevel.accounting.ledger.durable_files import write_new
from bevel.batch_selection import MinSepState
from bevel.file_errors import explain_file_errors
from bevel.training.folder import SAMPLER_STATES, make_private_folder
from bevel.training.process_agreement import is_first

# A run resumes from its newest checkpoint, or from an older one if that is damaged.
KEPT = 3
_DIGEST = 32


class SamplerStates:
    """The saved states of the sampler of a run. `key` is the secret key of their checksums."""

    def __init__(self, private: Path, key: bytes) -> None:
        self._folder, self._key = private / SAMPLER_STATES, key

    def save(self, state: MinSepState, attempt: int) -> None:
        """Saves the state before step `state.step`, and removes all but the newest ones."""
        if not is_first():
            return
        with explain_file_errors(self._folder):
            self._write(state, attempt)

    def _write(self, state: MinSepState, attempt: int) -> None:
        make_private_folder(self._folder)
        lengths = [len(batch) for batch in state.resting]
        header = np.asarray([state.step, attempt, len(lengths), *lengths], "<i8")
        content = np.concatenate([header, *state.resting]).astype("<i8").tobytes()
        path = self._folder / f"{attempt}-{state.step}"
        temporary = path.with_name(f".{path.name}")
        temporary.unlink(missing_ok=True)
        write_new(temporary, self._checksum(content) + content, 0o600)
        temporary.replace(path)
        others = (other for other in self._folder.iterdir() if other != path)
        for old in sorted(others, key=os.path.getmtime, reverse=True)[KEPT - 1 :]:
            old.unlink()

    def load(self, step: int, attempt: int) -> MinSepState | None:
        """Returns the state before a step, or None if it was not saved or is damaged."""
        try:
            saved = (self._folder / f"{attempt}-{step}").read_bytes()
        except OSError:
            return None
        content = saved[_DIGEST:]
        if saved[:_DIGEST] != self._checksum(content):
            return None
        numbers = np.frombuffer(content, "<i8").astype(np.int64)
        count = int(numbers[2])
        ends = 3 + count + np.cumsum(numbers[3 : 3 + count])
        if [*numbers[:2]] != [step, attempt]:  # the file was renamed
            return None
        starts: list[Any] = [3 + count, *ends[:-1]]
        return MinSepState(
            step, tuple(numbers[a:b] for a, b in zip(starts[:count], ends, strict=True))
        )

    def _checksum(self, content: bytes) -> bytes:
        return hashlib.blake2b(
            content, key=self._key, digest_size=_DIGEST, person=b"bevel sampler"
        ).digest()
