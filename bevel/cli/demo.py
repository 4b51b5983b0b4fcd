"""`bevel demo`: trains a private model on bundled data and 8 virtual devices, with a report."""

import dataclasses
import json
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bevel.cli.command_parser import CommandParser
from bevel.cli.config import Config, MeshTable, ModelTable, OptimizerTable, PlanTable, RunTable
from bevel.cli.train import build, progress
from bevel.training.folder import METRICS, RELEASED, REPORT, RUN

EXAMPLES = """examples:
  bevel demo
  bevel demo --folder runs/other # if it is killed, start it again to resume
  bevel demo --edges             # per-example clipping where plain JAX fails
"""
FOLDER = Path("runs") / "demo"
CONFIG = Path("examples") / "digits.toml"
# Tuned on a fifth of the training set. Epsilon does not cover that tuning.
DIGITS = Config(
    plan=PlanTable(batch_size=512, steps=100, epsilon=4.0, delta=1e-4, clip_norm=0.5),
    model=ModelTable(kind="conv", widths=(8, 16)),
    optimizer=OptimizerTable(name="sgd", learning_rate=1.0, momentum=0.9, ema_decay=0.9),
    mesh=MeshTable(axes="data=4,model=2", rules="tensor", cpu_devices=8),
    run=RunTable(checkpoint_every=20),
)


def main(arguments: Sequence[str]) -> int:
    parser = CommandParser(
        "demo",
        "Train a private model on scikit-learn's handwritten digits, at epsilon 4 and\n"
        "delta 1e-4, on 8 virtual CPU devices with the mesh data=4,model=2.",
        EXAMPLES,
    )
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"by default {FOLDER}")
    parser.add_argument("--steps", type=int, default=DIGITS.plan.steps, help="by default 100")
    parser.add_argument("--quiet", action="store_true", help="print the last line only")
    parser.add_argument("--edges", action="store_true", help="show the sharp edges instead")
    options = parser.parsed(arguments)
    if options.edges:
        from bevel.cli import sharp_edges

        sharp_edges.main()
        return 0
    folder = options.folder
    plan = dataclasses.replace(DIGITS.plan, steps=options.steps)
    finished = _finished(folder, options.steps)
    if finished is None:
        _train_and_compare(dataclasses.replace(DIGITS, plan=plan), folder, options.quiet)
    else:
        print(
            f"The demo in {folder} is complete: test accuracy {finished:.1%} at epsilon "
            f"{plan.epsilon:g}.\nTo start over, remove the folder: rm -r {folder}"
        )
    if not options.quiet:
        print(_next_steps(folder))
    return 0


def _finished(folder: Path, steps: int) -> float | None:
    """The test accuracy of a demo that has taken all its steps. None if there is none."""
    released = folder / RELEASED
    try:
        record = json.loads((released / RUN).read_text())
        last = json.loads((released / METRICS).read_text().splitlines()[-1])
        is_complete = (record["ending"], record["steps"]) == ("complete", steps)
        return float(last["test_accuracy"]) if is_complete else None
    except (OSError, ValueError, LookupError, TypeError):
        return None  # there is no run, or `fit` says what is wrong with it


def _train_and_compare(config: Config, folder: Path, quiet: bool) -> None:
    """Trains privately in a folder, then without privacy, and prints both accuracies."""
    start = time.perf_counter()
    shown = progress(quiet, wants_json=False)
    with shown.working("loading JAX and Orbax"):
        from bevel.cli.job import Job, use_cpu_devices
        from bevel.report import write_report

        use_cpu_devices(config.mesh.cpu_devices or 1)
    job = Job(config)
    build(job, shown)
    shown.note(
        f"Training on {len(job.data.train)} digits, with noise multiplier "
        f"{job.plan.mechanism.noise_multiplier:.3g} on 8 virtual devices"
    )
    accuracy = job.final_metrics(job.fit(folder=folder, progress=shown))["test_accuracy"]
    with shown.working("training the same model without privacy"):
        baseline = Job(without_privacy(config))
        metrics = baseline.final_metrics(baseline.fit(progress=False))
    with shown.working("writing the report"):
        # The digits are public, so what a model without privacy learns from them is too.
        write_report(folder, baseline=metrics, publish_baseline=True)
    print(
        f"test accuracy {accuracy:.1%} at epsilon {config.plan.epsilon:g}, delta "
        f"{config.plan.delta:g}; {metrics['test_accuracy']:.1%} without privacy "
        f"({time.perf_counter() - start:.0f} s)"
    )


def _next_steps(folder: Path) -> str:
    """Three things to try, with the command as it was called."""
    bevel = "bevel" if shutil.which("bevel") else sys.argv[0]
    bevel = f"{Path(sys.executable).name} -m bevel" if bevel.endswith(".py") else bevel
    train = f"{bevel} train {CONFIG} --plan.epsilon=1"
    return "\n".join(
        [
            "",
            "Try next:",
            f"  open {folder / RELEASED / REPORT} in a browser",
            f"  {bevel} spent {folder}",
            f"  {train if CONFIG.exists() else f'{bevel} audit {folder}'}",
        ]
    )


def without_privacy(config: Config) -> Config:
    """The same model and steps, without clipping or noise."""
    plan = PlanTable(config.plan.batch_size, config.plan.steps, "none")
    return dataclasses.replace(config, plan=plan)
