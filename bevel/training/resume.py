"""Whether steps that are run again need fresh noise, and a charge (DESIGN, promise 6).

A step is released when anything computed from it leaves the trainer; here that is at a checkpoint,
when Orbax gives it its name. Steps after the checkpoint that a run goes on from are

| were they released?            | what is done                                                    |
| ------------------------------ | --------------------------------------------------------------- |
| no                             | run with the same noise and batches, on any mesh; no charge     |
| yes, and all is as it was      | run again to the same bits; no charge                           |
| yes, and something is not      | run as a new attempt: fresh noise and batches, charged again    |

The last two come up only when released checkpoints were damaged or removed.
"""

import os
import platform
from typing import Any

import jax
from jax.sharding import Mesh

from bevel.errors import RestoreCheckpointError


def attempt_to_take(
    *,
    step: int,
    attempt: int,
    ledger_attempt: int,
    released_until: int,
    differences: list[str],
    composes_by_step: bool,
) -> int:
    """The attempt under which the steps from `step` on are run.

    Args:
      step, attempt: of the checkpoint.
      ledger_attempt: the last one that was charged.
      released_until: steps before this one were released by that attempt.
      differences: what is not as it was when the checkpoint was written.
      composes_by_step: whether steps of a second attempt may follow those of a first.
    """
    if released_until <= step:
        return ledger_attempt
    if attempt == ledger_attempt and not differences:
        return ledger_attempt
    if not composes_by_step:
        raise RestoreCheckpointError(
            f"the run can only go on from step {step}, and steps up to {released_until} were "
            f"released; they cannot be run again to the same bits ({'; '.join(differences)}), and "
            "with noise or batches that tie steps together no guarantee is proven for steps that "
            "are run again with fresh ones. Restore the newer checkpoint, go on where the run was "
            "begun, or begin another run in the same ledger."
        )
    return ledger_attempt + 1


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
        else {name: [int(size), str(kind)] for (name, size), kind in axes_of(mesh)},
    }


def axes_of(mesh: Mesh) -> Any:
    return zip(mesh.shape.items(), mesh.axis_types, strict=True)


def differences(saved: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What is not as it was, in words; and what makes no two runs of a step alike."""
    found = [
        f"{name} is {now.get(name)}, and was {saved.get(name)}"
        for name in sorted(saved.keys() | now.keys())
        if saved.get(name) != now.get(name)
    ]
    flags, device = str(now.get("flags")), str(now.get("device"))
    if device.startswith(("gpu", "cuda", "rocm")) and not (
        "--xla_gpu_deterministic_ops=true" in flags
        or "--xla_gpu_exclude_nondeterministic_ops=true" in flags
    ):
        found.append("on a GPU bits repeat only with XLA_FLAGS=--xla_gpu_deterministic_ops=true")
    return found
