"""Process 0 writes; all processes are checked for agreement before the first step.

Every function here that takes part in an exchange waits for all processes, so `fit` calls them when
it starts and at releases, and never in a step.
"""

import hashlib
from collections.abc import Mapping

import jax
import numpy as np

from bevel.errors import FixArgumentsError


def is_first() -> bool:
    """Returns whether this is process 0, which writes the ledger, secrets and records for all."""
    return jax.process_index() == 0


def barrier(name: str) -> None:
    """Waits until all processes of the run have made this call."""
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(name)


def from_first_process(*numbers: float) -> list[float]:
    """Returns the numbers of the first process, exactly, in every process."""
    if jax.process_count() == 1:
        return list(numbers)
    from jax.experimental import multihost_utils

    words = np.asarray(numbers, np.float64).view(np.uint32)  # without x64, JAX sends 32 bits
    sent = np.asarray(multihost_utils.broadcast_one_to_all(words), np.uint32)
    return [float(number) for number in sent.view(np.float64)]


def any_process(local: bool) -> bool:
    """Returns whether `local` is true in any process. All processes must call this."""
    return bool(np.any(gathered(np.asarray(local))))


def gathered(local: np.ndarray) -> np.ndarray:
    """Stacks the arrays of all processes, which must have the same shape and dtype."""
    if jax.process_count() == 1:
        return local[None]
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(local))


def joined_digests(local: list[bytes]) -> list[str]:
    """Combines the row digests of all processes to one hexadecimal digest per step.

    Returns nothing, and exchanges nothing, if the rows were not hashed (the digests are empty).
    """
    if not any(local):
        return []
    size = len(local[0])
    table = np.frombuffer(b"".join(local), np.uint8).reshape(len(local), size)
    steps = gathered(table).transpose(1, 0, 2)  # (steps, processes, bytes)
    return [hashlib.blake2b(step.tobytes(), digest_size=16).hexdigest() for step in steps]


def check_same(parts: Mapping[str, str]) -> None:
    """Raises in every process unless all processes have the same value for every part.

    Only hashes of the values are exchanged. All processes must pass the same names.
    """
    if jax.process_count() == 1:
        return
    hashes = [hashlib.sha256(value.encode()).digest() for value in parts.values()]
    hashes_by_process = gathered(np.frombuffer(b"".join(hashes), np.uint8).reshape(len(parts), -1))
    first, problems = hashes_by_process[0], []
    for process, own in enumerate(hashes_by_process):
        differing = [name for k, name in enumerate(parts) if not np.array_equal(own[k], first[k])]
        if differing:
            problems.append(f"process {process} differs in {', '.join(differing)}")
    if problems:
        raise FixArgumentsError(
            f"the processes of this run differ. Compared with process 0, {'; '.join(problems)}. "
            "Nothing was charged or released. Start every process with the same program, settings "
            "and data."
        )
