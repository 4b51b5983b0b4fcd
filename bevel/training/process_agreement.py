"""Several processes, one run: the first decides, and all are compared before they begin."""

import hashlib
from collections.abc import Mapping

import jax
import numpy as np

from bevel.errors import FixArgumentsError


def is_first() -> bool:
    """Whether this process writes ledger, secrets and records for all."""
    return jax.process_index() == 0


def together(name: str) -> None:
    """Waits for the other processes of the run."""
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(name)


def agreed(*numbers: float) -> list[float]:
    """The numbers of the first process, to the last bit."""
    if jax.process_count() == 1:
        return list(numbers)
    from jax.experimental import multihost_utils

    words = np.asarray(numbers, np.float64).view(np.uint32)  # without x64, JAX sends 32 bits
    sent = np.asarray(multihost_utils.broadcast_one_to_all(words), np.uint32)
    return [float(number) for number in sent.view(np.float64)]


def any_of(wish: bool) -> bool:
    """Whether any process has the wish. All must ask together."""
    return bool(np.any(of_all(np.asarray(wish))))


def of_all(local: np.ndarray) -> np.ndarray:
    """The arrays of all processes, stacked in their order: all of one shape and dtype."""
    if jax.process_count() == 1:
        return local[None]
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(local))


def joined_digests(local: list[bytes]) -> list[str]:
    """From each process's digests of its own rows to one for each step, in hex."""
    if not local:
        return []
    size = len(local[0])
    table = np.frombuffer(b"".join(local), np.uint8).reshape(len(local), size)
    steps = of_all(table).transpose(1, 0, 2)  # (steps, processes, bytes)
    return [hashlib.blake2b(step.tobytes(), digest_size=16).hexdigest() for step in steps]


def check_same(parts: Mapping[str, str]) -> None:
    """Raises, in every process, unless all have the same value for every part.

    Only hashes of the values are exchanged. All processes must give the same names.
    """
    if jax.process_count() == 1:
        return
    hashes = [hashlib.sha256(value.encode()).digest() for value in parts.values()]
    found = of_all(np.frombuffer(b"".join(hashes), np.uint8).reshape(len(parts), -1))
    wrong = []
    for number, mine in enumerate(found):
        differing = [
            name for k, name in enumerate(parts) if not np.array_equal(mine[k], found[0][k])
        ]
        if differing:
            wrong.append(f"process {number} has another {', another '.join(differing)}")
    if wrong:
        raise FixArgumentsError(
            f"the processes of this run do not agree: compared with process 0, {'; '.join(wrong)}. "
            "Nothing was charged or released. Start every process with the same program, settings "
            "and data."
        )
