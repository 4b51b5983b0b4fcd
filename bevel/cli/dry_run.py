"""`bevel train CONFIG.toml --dry-run`: says what a run will do. Nothing is trained or written."""

import json
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bevel.cli.config import Config
from bevel.cli.parsing import config_and_overrides

WIDTH = 79
COLUMN = 11


def main(arguments: Sequence[str], about: str) -> int:
    """Prints what the run will do. Returns 1 if it would be refused."""
    words = [word for word in arguments if word != "--json"]
    config = config_and_overrides("train", about, words)
    from bevel.processes import join

    process = join()
    if process.count == 1 and config.mesh.cpu_devices is not None:
        from bevel.cli.job import use_cpu_devices

        use_cpu_devices(config.mesh.cpu_devices)
    found = _facts(config)
    if process.index == 0:
        print(json.dumps(found, indent=2) if "--json" in arguments else _text(found))
    return int(found["folder"]["status"] == "refused")


def _facts(config: Config) -> dict[str, Any]:
    """What a run of this config will do, as data.

    Of the data set, only its size and the shape of a record are used, and the step is timed on
    zeros. Neither the folder nor the ledger is changed.
    """
    import jax

    from bevel.cli.job import Job
    from bevel.training.outlook import folder_outlook
    from bevel.training.run_description import identity_without_data
    from bevel.training.trial import try_step

    job, run = Job(config), config.run
    plan, trainer, options = job.plan, job.trainer, job.run_options()
    begin = trainer.init(job.init())
    trial = try_step(trainer, begin, job.data.train, run.compilations)
    delta = plan.budget.delta if plan.budget else config.plan.delta
    outlook = folder_outlook(
        Path(run.folder),
        identity_without_data(trainer, begin, options, trial.digests),
        plan.iterations,
        ledger=run.ledger,
        accept=run.accept,
        delta=delta,
    )
    private = plan.mechanism.noise_multiplier is not None
    left = plan.iterations - outlook.step
    devices = job.mesh.devices.flatten().tolist()
    return {
        "promise": {
            "epsilon": plan.epsilon(delta=delta) if private and delta is not None else None,
            "delta": delta,
            "unit": plan.unit.name,
            "relation": plan.neighboring_relation.name,
            "units": plan.num_units,
            "mechanism": config.plan.mechanism,
            "noise_multiplier": plan.mechanism.noise_multiplier,
            "clip_norm": plan.clip.l2_clip_norm if private else None,
            "noise_is_known": run.test_seed is not None,
        },
        "steps": {
            "total": plan.iterations,
            "left": left,
            "expected_batch_size": plan.expected_batch_size,
            "padded_sizes": list(trial.padded_sizes),
        },
        "parameters": sum(math.prod(x.shape) for x in jax.tree.leaves(begin.params)),
        "devices": {
            "count": len(devices),
            "kind": devices[0].device_kind,
            "mesh": {name: int(size) for name, size in job.mesh.shape.items()},
            "rules": config.mesh.rules,
        },
        "device_bytes": trial.device_bytes,
        "seconds": {
            "compile": round(trial.compile_seconds, 3),
            "step": trial.step_seconds,
            "steps_left": trial.step_seconds * left,
        },
        "disk": {
            "checkpoint_bytes": trial.state_bytes,
            "checkpoints": run.keep + 1,
            "bytes": trial.state_bytes * (run.keep + 1),
        },
        "folder": {
            "path": run.folder,
            "status": outlook.status,
            "step": outlook.step,
            "reason": outlook.reason or None,
            "ledger": run.ledger,
            "spent": outlook.spent,
        },
    }


def _text(found: dict[str, Any]) -> str:
    from bevel.sharding.tables import shown_bytes

    steps, seconds, disk = found["steps"], found["seconds"], found["disk"]
    devices, size = found["devices"], found["steps"]["expected_batch_size"]
    memory = found["device_bytes"]
    axes = ", ".join(f"{name}={count}" for name, count in devices["mesh"].items())
    padded = ", ".join(map(str, steps["padded_sizes"]))
    rows = {
        "promise": _promise(found["promise"]),
        "noise": _noise(found["promise"]),
        "steps": f"{steps['total']:,}, in batches of {size:,.10g} {found['promise']['unit']}s on "
        f"average, padded to {padded}",
        "model": f"{found['parameters']:,} parameters",
        "devices": f"{devices['count']} x {devices['kind']}, mesh {axes}, parameters "
        f"{devices['rules']}",
        "memory": "not known: the compiler does not say"
        if memory is None
        else f"{shown_bytes(memory)} on each device, by the compiler",
        "time": f"{_duration(seconds['step'])} per step on made-up data, after "
        f"{_duration(seconds['compile'])} of compilation; about "
        f"{_duration(seconds['steps_left'])} for {steps['left']:,} steps, without reading data, "
        "evaluation and checkpoints",
        "disk": f"{shown_bytes(disk['bytes'])}: {disk['checkpoints'] - 1} checkpoints and one that "
        f"is being written, of {shown_bytes(disk['checkpoint_bytes'])} each",
        "folder": _folder(found["folder"], steps["total"]),
    }
    indent = " " * COLUMN
    lines = [
        textwrap.fill(text, WIDTH, initial_indent=f"{name:<{COLUMN}}", subsequent_indent=indent)
        for name, text in rows.items()
    ]
    return "\n".join(["Dry run: nothing is trained on, charged or written.", "", *lines])


def _promise(promise: dict[str, Any]) -> str:
    from bevel.accounting.rounding import shown_delta, shown_epsilon
    from bevel.report.guarantee import CHANGED, UNITS

    if promise["noise_multiplier"] is None:
        return "none: the mechanism is none, so nothing is protected"
    if promise["noise_is_known"]:
        return "none: test_seed makes the noise known, so nothing is protected"
    if promise["epsilon"] is None:
        return "not known: set delta in [plan]"
    return (
        f"epsilon {shown_epsilon(promise['epsilon'])} at delta {shown_delta(promise['delta'])}, "
        f"for {UNITS[promise['unit']]}, {CHANGED[promise['relation']]}"
    )


def _noise(promise: dict[str, Any]) -> str:
    if promise["noise_multiplier"] is None:
        return "none"
    return (
        f"{promise['mechanism']} with noise multiplier {promise['noise_multiplier']:.4g} and clip "
        f"norm {promise['clip_norm']:g}"
    )


def _folder(folder: dict[str, Any], steps: int) -> str:
    from bevel.accounting.rounding import shown_epsilon
    from bevel.cli.wording import in_cli_words

    texts = {
        "new": "a new run",
        "resumes": f"the run there would resume after step {folder['step']:,} of {steps:,}, if the "
        "data are the same (they were not compared)",
        "complete": f"the run there is complete, with {folder['step']:,} steps",
        "refused": f"the run would be refused: {in_cli_words(folder['reason'] or '')}",
    }
    text = f"{folder['path']}: {texts[folder['status']]}"
    if folder["spent"] is not None:
        text += f"; epsilon {shown_epsilon(folder['spent'])} is spent in its ledger"
    return text


def _duration(seconds: float) -> str:
    """Such as 1.23 ms, 14.1 s or 2.5 h."""
    units = (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3))
    unit, size = next((pair for pair in units if seconds >= pair[1]), units[-1])
    return f"{seconds / size:.3g} {unit}"
