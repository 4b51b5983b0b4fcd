"""What run.json says: all that a reader of a report needs, and nothing that is secret."""

import dataclasses
import os
import subprocess
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bevel import sharding
from bevel.training.batches import Batches
from bevel.training.programs import Programs
from bevel.training.run import LEDGER, now
from bevel.training.state import TrainingState

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
        # As it is found from the folder, so that both can be moved together.
        "ledger": os.path.relpath(run.options.ledger or run.folder / LEDGER, run.folder),
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
        "arrays": [dataclasses.asdict(row) for row in sharding.describe(state).rows],
        "collectives": collectives(programs, batches.sizes.sizes),
    }


def collectives(programs: Programs, sizes: tuple[int, ...]) -> list[dict[str, Any]] | None:
    """What the first of the compiled steps moves between devices; None where that is not known."""
    inspect_step = getattr(sharding, "inspect_step", None)
    if inspect_step is None or not programs.compiled:
        return None
    try:
        report = inspect_step(programs.of_size(sizes[0]))
    except Exception:  # a report that cannot be made is no reason not to train
        return None
    shown = ["kind", "dtype", "shapes", "bytes", "group_size", "axes", "times", "sent", "line"]
    shown += ["operation"]
    return [{name: row[name] for name in shown} for row in report.to_dict()["collectives"]]


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
