"""Describes a run: the contents of both run.json files, and its identity."""

import dataclasses
import hashlib
import json
import os
import subprocess
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from bevel import sharding
from bevel.training import data
from bevel.training.batches import Batches
from bevel.training.compiled_steps import CompiledSteps
from bevel.training.digest import digest
from bevel.training.folder_run import FolderRun
from bevel.training.identity import Change, Identity, flatten, named_values, plan_settings
from bevel.training.run_json import now
from bevel.training.run_options import RunOptions
from bevel.training.state import TrainingState, path_text, split, trained_paths
from bevel.training.tuning_record import Tuning

if TYPE_CHECKING:
    from bevel.training.trainer import Trainer

PACKAGES = ("bevel", "jax", "jaxlib", "numpy", "optax", "dp-accounting", "orbax-checkpoint")
# Entries of `environment` that are digests, or are recorded elsewhere.
NOT_SURROUNDINGS = ("program", "padded_sizes")


def public_record(
    trainer: "Trainer",
    batches: Batches,
    state: TrainingState,
    programs: CompiledSteps,
    environment: dict[str, Any],
    run: FolderRun,
    changes: list[Change],
) -> dict[str, Any]:
    """Returns released/run.json: public settings, and what follows from them without the data."""
    plan, budget = trainer.plan, run.budget
    released = run.last_release(int(state.step))
    accepted = [
        # The step of the last release: the current step would show when the run was interrupted.
        {"step": released, "name": change.name, "from": change.before, "to": change.now}
        for change in changes
        if change.kind == "acceptable"
    ]
    return {
        # Reused: the description takes a second, because it states epsilon under every relation.
        "plan": run.record.public.get("plan")
        or {"fingerprint": plan.fingerprint(), "description": str(plan)},
        "unit": plan.unit.name,
        "relation": plan.neighboring_relation.name,
        "budget": budget and {"epsilon": budget.epsilon, "delta": budget.delta},
        "delta": run.delta,
        # Relative to the folder of this file, so that both can be moved together.
        "ledger": os.path.relpath(run.ledger_path, run.folder.released),
        "steps": plan.iterations,
        "tuning": dataclasses.asdict(Tuning.of(run.options.tuning)),
        "data": {
            "records": len(batches.source),
            "units": plan.num_units,
            "expected_batch_size": plan.expected_batch_size,
            "padded_sizes": list(batches.sizes.sizes),
        },
        "settings": _settings_of(trainer, run.options),
        "changes": [*run.record.public.get("changes", []), *accepted],
        "key_is_secret": not run.run_secrets.known,
        "versions": {name: version_of(name) for name in PACKAGES},
        "commit": commit_of_caller(),
        "surroundings": _surroundings_of(environment),
        "programs_compiled_ahead": len(batches.sizes.sizes),
        "arrays": [dataclasses.asdict(row) for row in sharding.describe(state).rows],
        "collectives": collectives(programs, batches.sizes.sizes)
        or run.record.public.get("collectives"),
        "ending": None,
    }


def private_record(run: FolderRun, environment: dict[str, Any]) -> dict[str, Any]:
    """Returns private/run.json: times, status and the digest of the program."""
    started = run.record.private.get("started")
    return {
        "started": started or now(),
        "resumed": now() if started else None,
        "finished": None,
        "status": "running",
        "program": environment["program"],
    }


def identity_of(
    trainer: "Trainer",
    begin: TrainingState,
    batches: Batches,
    run: FolderRun,
    environment: dict[str, Any],
    programs: dict[str, str],
) -> Identity:
    """Returns the identity of a run before its first step."""
    data_digest = data.fingerprint(batches.source, run.run_secrets.row_key, batches.population)
    settings = _settings_of(trainer, run.options)
    return _identity(trainer, begin, settings, data_digest, environment, programs)


def identity_without_data(
    trainer: "Trainer", begin: TrainingState, options: RunOptions, programs: dict[str, str]
) -> Identity:
    """The identity of a run whose data is not looked at. It has neither secrets nor a folder."""
    return _identity(trainer, begin, _settings_of(trainer, options), "", {}, programs)


def _identity(
    trainer: "Trainer",
    begin: TrainingState,
    settings: dict[str, Any],
    data_digest: str,
    environment: dict[str, Any],
    programs: dict[str, str],
) -> Identity:
    trained, frozen = split(begin.params, trainer.trainable)
    identity = Identity(
        settings=settings,
        digests={
            "plan": trainer.plan.fingerprint(),
            "data": data_digest,
            "structure": _structure_of(
                dataclasses.replace(begin, params=trained, model_state=None)
            ),
            "structure.params": _structure_of(trained),
            "structure.optimizer": _structure_of(begin.opt_state),
            "initial parameters": " ".join(digest(trained)),
            "frozen parameters": " ".join(digest(frozen)),
            **_model_state_digest(begin.model_state),
            **programs,
        },
        surroundings=_surroundings_of(environment),
    )
    return Identity(**json.loads(json.dumps(dataclasses.asdict(identity))))


def _model_state_digest(model_state: Any) -> dict[str, str]:
    """The digest of a model state, which covers its structure. Empty if there is none."""
    if model_state is None:
        return {}
    return {"model state": " ".join([_structure_of(model_state), *digest(model_state)])}


def shared_by_processes(
    trainer: "Trainer", batches: Batches, state: Any, model_state: Any, options: RunOptions
) -> dict[str, str]:
    """Returns what must be equal in all processes before they start, by name."""
    given = state.params if isinstance(state, TrainingState) else state
    return {
        "plan": trainer.plan.fingerprint(),
        "initial parameters": _host_digest(state),
        "model state": _host_digest(model_state),
        "data": data.fingerprint(batches.source, b"compared in memory only", batches.population),
        "options": str(dataclasses.replace(options, progress=None)),
        "versions": " ".join(str(version_of(name)) for name in PACKAGES),
        "trainer": f"{trainer.rules} {trainer.batch_axes} {trainer.ema_decay} "
        + " ".join(trained_paths(given, trainer.trainable)),
    }


def _host_digest(tree: Any) -> str:
    """The structure of a tree, and hashes of the leaves that this process has as a whole."""
    hashes = [
        hashlib.sha256(_bytes_of(x)).hexdigest()
        for x in jax.tree.leaves(tree)
        if getattr(x, "is_fully_addressable", True)
    ]
    return f"{jax.tree.structure(tree)} {hashes}"


def _bytes_of(leaf: Any) -> bytes:
    is_key = isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf).tobytes()


def _settings_of(trainer: "Trainer", options: RunOptions) -> dict[str, Any]:
    """Returns all named values: those of the plan, the trainer and `RunOptions(settings=)`."""
    own = {"ema_decay": trainer.ema_decay}
    if trainer.augmentation is not None:
        own["augmentation.views"] = trainer.augmentation.views
    return flatten(named_values(options.settings)) | own | plan_settings(trainer.plan)


def _surroundings_of(environment: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in environment.items() if name not in NOT_SURROUNDINGS}


def _structure_of(tree: Any) -> str:
    """Hashes the paths, shapes and dtypes of a tree."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    text = [f"{path_text(path)} {x.dtype}{list(x.shape)}" for path, x in leaves]
    return hashlib.sha256("\n".join(text).encode()).hexdigest()


def collectives(programs: CompiledSteps, sizes: tuple[int, ...]) -> list[dict[str, Any]] | None:
    """Lists the collectives of the first compiled step. None if they cannot be determined."""
    inspect_step = getattr(sharding, "inspect_step", None)
    if inspect_step is None or not programs.ahead:
        return None
    try:
        report = inspect_step(programs.of_size(sizes[0]))
    except Exception:  # training must not fail because of a report
        return None
    fields = ["kind", "dtype", "shapes", "bytes", "group_size", "axes", "times", "sent", "line"]
    fields += ["operation"]
    return [{name: row[name] for name in fields} for row in report.to_dict()["collectives"]]


def version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def commit_of_caller() -> str | None:
    """Returns the git commit of the working directory, marked if files were changed."""
    try:
        command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        git = subprocess.run(command, capture_output=True, text=True, cwd=Path.cwd(), timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return git.stdout.strip() or None if git.returncode == 0 else None
