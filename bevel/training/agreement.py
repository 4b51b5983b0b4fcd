"""Several processes, one decision: the first decides, over JAX's own connections."""

import jax
import numpy as np


def is_first() -> bool:
    """Whether this process writes ledger, secrets and records for all."""
    return jax.process_index() == 0


def together(name: str) -> None:
    """Waits for the other processes of the run."""
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(name)


def agreed(*numbers: float) -> list[float]:
    """The numbers of the first process, to float32; whole ones up to 2**24 exactly."""
    if jax.process_count() == 1:
        return list(numbers)
    from jax.experimental import multihost_utils

    sent = multihost_utils.broadcast_one_to_all(np.asarray(numbers, np.float32))
    return [float(number) for number in np.asarray(sent)]


def any_of(wish: bool) -> bool:
    """Whether any process has the wish. All must ask together."""
    if jax.process_count() == 1:
        return wish
    from jax.experimental import multihost_utils

    return bool(np.any(multihost_utils.process_allgather(np.asarray(wish))))
