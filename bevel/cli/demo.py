"""`bevel demo`: a private model on embedded data and 8 virtual devices, with a report to see."""

import argparse
import dataclasses
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bevel.cli.config import Config, MeshTable, ModelTable, OptimizerTable, PlanTable, RunTable

EXAMPLES = """examples:
  bevel demo
  bevel demo --folder runs/demo      # killed and started again, it goes on
  bevel demo --edges                 # clipping per example on a mesh, where plain JAX goes wrong
"""
# Chosen on a fifth of the training set, which epsilon excludes.
DIGITS = Config(
    plan=PlanTable(batch_size=512, steps=100, epsilon=4.0, delta=1e-4, clip_norm=0.5),
    model=ModelTable(kind="conv", widths=(8, 16)),
    optimizer=OptimizerTable(name="sgd", learning_rate=1.0, momentum=0.9, ema_decay=0.9),
    mesh=MeshTable(axes="data=4,model=2", rules="tensor", cpu_devices=8),
    run=RunTable(checkpoint_every=10),
)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="bevel demo",
        description="Train a private model of handwritten digits (scikit-learn's) on 8 virtual CPU "
        "devices, mesh data=4,model=2, at epsilon 4 and delta 1e-4.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--folder", type=Path, help="of the run; by default a new temporary one")
    parser.add_argument("--steps", type=int, default=DIGITS.plan.steps)
    parser.add_argument("--edges", action="store_true", help="the sharp edges of clipping instead")
    given = parser.parse_args(arguments)
    if given.edges:
        from bevel.cli import sharp_edges

        sharp_edges.main()
        return 0
    folder = given.folder or Path(tempfile.mkdtemp(prefix="bevel-demo-")) / "run"
    plan = dataclasses.replace(DIGITS.plan, steps=given.steps)
    _show(dataclasses.replace(DIGITS, plan=plan), folder)
    return 0


def _show(config: Config, folder: Path) -> None:
    """Trains privately in a folder, then without privacy, and says where the report is."""
    from bevel.cli.job import Job, use_cpu_devices
    from bevel.report import write_report

    begun = time.perf_counter()
    use_cpu_devices(config.mesh.cpu_devices or 1)
    job = Job(config)
    print(
        f"{len(job.data.x_train)} digits to train on, {len(job.data.x_test)} to test with; "
        f"noise multiplier {job.plan.mechanism.noise_multiplier:.3g} for epsilon "
        f"{config.plan.epsilon:g} at delta {config.plan.delta:g}",
        flush=True,
    )
    accuracy = job.final_accuracy(job.fit(folder=folder))
    baseline = Job(without_privacy(config))
    plain = baseline.final_accuracy(baseline.fit(progress=False))
    report = write_report(folder)
    print(f"test accuracy {accuracy:.1%} at epsilon {config.plan.epsilon:g}, delta ", end="")
    print(f"{config.plan.delta:g}; without privacy {plain:.1%}", end="")
    print(f" ({time.perf_counter() - begun:.0f} s in all)\nreport: {report}")


def without_privacy(config: Config) -> Config:
    """The same model and steps, without clipping and noise."""
    plan = PlanTable(config.plan.batch_size, config.plan.steps, "none")
    return dataclasses.replace(config, plan=plan)
