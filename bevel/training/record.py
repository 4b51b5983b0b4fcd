"""What run.json says: all that a reader of a report needs, and nothing that is secret."""

import subprocess
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from bevel.sharding.table import shown_spec
from bevel.training.batches import Batches
from bevel.training.programs import Programs
from bevel.training.run import now
from bevel.training.state import TrainingState, path_text

if TYPE_CHECKING:
    from bevel.training.trainer import Trainer

PACKAGES = ("bevel", "jax", "jaxlib", "numpy", "optax", "dp-accounting", "orbax-checkpoint")


def described(
    trainer: "Trainer",
    batches: Batches,
    state: TrainingState,
    programs: Programs,
    exactly: dict[str, Any],
    run: Any,
) -> dict[str, Any]:
    """The fields of run.json that are known before the first step."""
    plan, budget = trainer.plan, run.budget
    before = getattr(run, "record", {})
    began, same_plan = before.get("started"), before.get("plan")
    return {
        "started": began or now(),
        "resumed": now() if began else None,
        "finished": None,
        "status": "running",
        # The text takes a second, for it states epsilon under every relation.
        "plan": same_plan or {"fingerprint": plan.fingerprint(), "description": str(plan)},
        "unit": plan.unit.name,
        "relation": plan.neighboring_relation.name,
        "budget": budget and {"epsilon": budget.epsilon, "delta": budget.delta},
        "delta": run.delta,
        "steps": plan.iterations,
        "data": {
            "records": len(batches.source),
            "units": plan.num_units,
            "expected_batch_size": plan.expected_batch_size,
            "padded_sizes": list(batches.sizes.sizes),
        },
        "key_is_secret": not plan.secrets.known,
        "versions": {name: version_of(name) for name in PACKAGES},
        "commit": commit_of_caller(),
        "surroundings": {k: v for k, v in exactly.items() if k not in ("program", "data")},
        "program": exactly["program"],
        "programs_compiled_ahead": programs.compiled,
        "arrays": placement_rows(state),
    }


def placement_rows(tree: Any) -> list[dict[str, Any]]:
    """Where each array lies: one row per leaf."""
    rows = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        shard = leaf.sharding.shard_shape(leaf.shape)
        spec = getattr(leaf.sharding, "spec", None)
        rows.append(
            {
                "path": path_text(path),
                "shape": list(leaf.shape),
                "dtype": leaf.dtype.name,
                "spec": "one device" if spec is None else shown_spec(spec),
                "shard_shape": list(shard),
                "bytes_per_device": int(np.prod(shard)) * leaf.dtype.itemsize,
            }
        )
    return rows


def version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def commit_of_caller() -> str | None:
    """The commit that the present folder is at, with a mark if files differ from it."""
    try:
        asked = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        found = subprocess.run(asked, capture_output=True, text=True, cwd=Path.cwd(), timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None
