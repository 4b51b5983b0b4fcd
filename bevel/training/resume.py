"""Decides whether steps that are run again need fresh noise and another charge.

The ledger says which steps count as released: the charged ones or, where a charge covers later
steps in advance, the ones marked as released. For steps after the restored checkpoint:

| released?                    | what happens                                                      |
| ---------------------------- | ----------------------------------------------------------------- |
| no                           | run with the same noise and batches, on any mesh; not charged     |
| yes, and nothing has changed | run again with the same noise; if the result has the recorded     |
|                              | checksums it is published without a charge, otherwise as below    |
| yes, and something changed   | run as a new attempt: fresh noise and batches, charged again      |

The last two rows happen if released checkpoints were lost or damaged, or if the run folder was
restored from a backup. The last row is an error for mechanisms that do not compose step by step.
"""

import os
import platform
from typing import Any

import jax
from jax.sharding import Mesh

from bevel.errors import RestoreCheckpointError


class ReplayDiffersError(Exception):
    """Steps that were run again did not reproduce the recorded state. They were not released."""


def check_composes(step: int, released: int, why: list[str], composes_by_step: bool) -> None:
    """Raises if released steps cannot be run again with fresh noise."""
    if composes_by_step:
        return
    raise RestoreCheckpointError(
        f"steps {step} to {released} were released, but their checkpoint is missing. They cannot "
        f"be run again with the same noise ({'; '.join(why)}), and no guarantee is proven for "
        "fresh noise in this plan. Restore the newer checkpoint and its private half, undo the "
        "change, or start a new run in the same ledger."
    )


def fresh_attempt_notice(step: int, released: int, attempt: int, why: list[str]) -> str:
    return (
        f"steps {step} to {released} were released before, and cannot be run again with the same "
        f"noise: {'; '.join(why)}. They are run as attempt {attempt} with fresh noise and batches, "
        "and are charged again."
    )


def surroundings(mesh: Mesh | None) -> dict[str, Any]:
    """Returns what the bits of a step depend on in addition to its program, data and state."""
    import jaxlib
    import numpy as np

    device = jax.devices()[0] if mesh is None else mesh.devices.flat[0]
    return {
        "versions": {
            "jax": jax.__version__,
            "jaxlib": jaxlib.__version__,
            "numpy": np.__version__,
            "runtime": device.client.platform_version,
        },
        "device": f"{device.platform} {device.device_kind} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "flags": os.environ.get("XLA_FLAGS", ""),
        "processes": jax.process_count(),
        "mesh": None
        if mesh is None
        else {
            name: [int(size), str(kind)]
            for (name, size), kind in zip(mesh.shape.items(), mesh.axis_types, strict=True)
        },
    }
