"""Whether steps that are run again need fresh noise, and a charge.

The ledger says which steps count as released: those it has charged, or, where a charge reaches
ahead, those it has marked. Steps after the checkpoint that a run goes on from are

| were they released?          | what is done                                                      |
| ---------------------------- | ----------------------------------------------------------------- |
| no                           | run with the same noise and batches, on any mesh; no charge       |
| yes, and all is as it was    | run again with the same noise; if the result has the recorded     |
|                              | checksums it is published, at no charge, otherwise as below       |
| yes, and something is not    | run as a new attempt: fresh noise and batches, charged again      |

The last two come up when released checkpoints were lost or damaged, or the folder of a run was put
back from a copy. Mechanisms that do not compose step by step are refused in the last row.
"""

import os
import platform
from typing import Any

import jax
from jax.sharding import Mesh

from bevel.errors import RestoreCheckpointError


class ReplayDiffersError(Exception):
    """Steps that were run again did not give the recorded state: nothing of them was shown."""


def check_composes(step: int, released: int, why: list[str], composes_by_step: bool) -> None:
    """Raises where released steps cannot be run again with fresh noise."""
    if composes_by_step:
        return
    raise RestoreCheckpointError(
        f"the run can only go on from step {step}, and steps up to {released} were released. They "
        f"cannot be run again with the same noise ({'; '.join(why)}), and with noise or batches "
        "that tie steps together no guarantee is proven for steps that are run again with fresh "
        "noise. Restore the newer checkpoint with its private half, go on where the run was begun, "
        "or begin another run in the same ledger."
    )


def fresh_attempt_notice(step: int, released: int, attempt: int, why: list[str]) -> str:
    return (
        f"steps {step} to {released} were released before, and cannot be run again with the same "
        f"noise: {'; '.join(why)}. They are run as attempt {attempt}, with fresh noise and "
        "batches, and are charged again."
    )


def surroundings(mesh: Mesh | None) -> dict[str, Any]:
    """What the bits of a step depend on, beside its program, its data and its state."""
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
        else {name: [int(size), str(kind)] for (name, size), kind in _axes_of(mesh)},
    }


def _axes_of(mesh: Mesh) -> Any:
    return zip(mesh.shape.items(), mesh.axis_types, strict=True)
