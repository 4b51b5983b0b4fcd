"""Trains around the numbers that `bevel plan` proposes, and draws the accuracies.

    python benchmarks/choosing.py                           # digits: 15 minutes on two cores
    python benchmarks/choosing.py --data mnist.npz --output /tmp/mnist --parts grid,clip_norm

| part      | what changes around the proposal                                                |
| --------- | ------------------------------------------------------------------------------- |
| grid      | the batch size, with the same epochs, and the learning rate, at two epsilons     |
| steps     | the batch size, with the same number of steps, at two epsilons                   |
| clip_norm | the clip norm, at two epsilons                                                   |
| epochs    | the epochs, with the batch size, steps and learning rate proposed for them       |
| epsilon   | the epsilon, with everything proposed for it                                     |

Every run is a real run of the trainer, without a folder. Noise, batches and initial parameters
follow from the seed. Results go to OUTPUT/choosing.jsonl, which is continued when the command is
started again, and the pictures to OUTPUT/choosing_*.svg. Each point is the median over the seeds.
"""

import argparse
import dataclasses
import datetime
import json
import math
import os
import platform
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax

import bevel
from bevel.choosing import Request, propose
from bevel.cli.config import Config, OptimizerTable, PlanTable, RunTable
from bevel.cli.job import Job
from bevel.datasets import DataTable
from bevel.models import ModelTable

EPSILONS = (1.0, 4.0)
FACTORS = {
    "batch": (1 / 4, 1, 2, 4, 16, 64),
    "learning_rate": (1 / 10, 1 / 3, 1, 3, 10),
    "clip_norm": (0.01, 0.1, 1, 10, 100),
}
EPOCHS = (2, 5, 10, 20, 40, 80)
MOST_STEPS = 4000  # batch sizes that need more are left out
STEPS, SIZES = 250, (4, 8, 16, 32, 64, 128, 256, 512, 1024)
MANY_EPSILONS = (0.25, 0.5, 1, 2, 4, 8, 16)
COLORS = {1.0: "#c8500a", 4.0: "#1f5fa8"}
LABELS = {
    "batch": "batch size (40 epochs)",
    "steps": f"batch size ({STEPS} steps)",
    "learning_rate": "learning rate",
    "clip_norm": "clip norm",
    "epochs": "epochs",
    "epsilon": "epsilon",
}


class Runs:
    """Trains configs, and remembers their accuracies in a file."""

    def __init__(self, base: Config, seeds: int, path: Path):
        self.base, self.seeds, self.path = base, seeds, path
        job = Job(base)
        self.units = len(job.data.train)
        shapes = jax.tree.leaves(jax.eval_shape(job.init))
        self.parameters = sum(math.prod(x.shape) for x in shapes)
        lines = path.read_text().splitlines() if path.exists() else []
        self.known = {key(row): row["accuracy"] for row in map(json.loads, lines)}

    def proposed(self, **given) -> dict[str, float]:
        request = Request(num_units=self.units, parameters=self.parameters, **given)
        choices = propose(request).choices
        return {name: choice.value for name, choice in choices.items() if name != "epochs"}

    def accuracies(self, numbers: dict[str, float]) -> list[float]:
        """The test accuracies of all seeds."""
        return [self.accuracy(numbers | {"seed": seed}) for seed in range(self.seeds)]

    def accuracy(self, row: dict[str, float]) -> float:
        if key(row) not in self.known:
            begun = time.perf_counter()
            plan = PlanTable(
                row["batch_size"],
                int(row["steps"]),
                epsilon=row["epsilon"],
                delta=row["delta"],
                clip_norm=row["clip_norm"],
            )
            config = dataclasses.replace(
                self.base,
                plan=plan,
                model=dataclasses.replace(self.base.model, init_seed=row["seed"]),
                optimizer=OptimizerTable(learning_rate=row["learning_rate"]),
                run=RunTable(test_seed=row["seed"], checkpoint_every=int(row["steps"])),
            )
            job = Job(config)
            accuracy = job.final_accuracy(job.fit(progress=False))
            self.known[key(row)] = accuracy
            seconds = round(time.perf_counter() - begun, 1)
            with self.path.open("a") as file:
                file.write(json.dumps(row | {"accuracy": accuracy, "seconds": seconds}) + "\n")
        return self.known[key(row)]


def key(row: dict[str, float]) -> str:
    given = {name: float(x) for name, x in row.items() if name not in ("accuracy", "seconds")}
    return json.dumps(given, sort_keys=True)


# Each part returns curves: {(name of the axis, label, epsilon): [(x, accuracies, is proposed)]}.


def grid(runs: Runs):
    curves = {}
    for epsilon in EPSILONS:
        proposed = runs.proposed(epsilon=epsilon)
        of_batch, best, of_rate = [], [], []
        for factor in FACTORS["batch"]:
            size = proposed["batch_size"] * factor
            if size > runs.units:
                continue
            here = runs.proposed(epsilon=epsilon, batch_size=size)
            if here["steps"] > MOST_STEPS:
                continue
            results = []
            for change in FACTORS["learning_rate"]:
                numbers = here | {"learning_rate": float(f"{here['learning_rate'] * change:.3g}")}
                results.append((numbers["learning_rate"], runs.accuracies(numbers), change == 1))
            of_batch.append((size, next(r[1] for r in results if r[2]), factor == 1))
            best.append((size, max((r[1] for r in results), key=statistics.median), False))
            if factor == 1:
                of_rate = results
        curves["batch", "proposed learning rate", epsilon] = of_batch
        curves["batch", "best learning rate", epsilon] = best
        curves["learning_rate", "", epsilon] = of_rate
    return curves


def steps(runs: Runs):
    curves = {}
    for epsilon in EPSILONS:
        best = runs.proposed(epsilon=epsilon, steps=STEPS)["batch_size"]
        curves["steps", "", epsilon] = [
            (
                size,
                runs.accuracies(runs.proposed(epsilon=epsilon, steps=STEPS, batch_size=size)),
                size == best,
            )
            for size in SIZES
            if size <= runs.units
        ]
    return curves


def clip_norm(runs: Runs):
    curves = {}
    for epsilon in EPSILONS:
        here = runs.proposed(epsilon=epsilon)
        curves["clip_norm", "", epsilon] = [
            (norm, runs.accuracies(here | {"clip_norm": float(norm)}), norm == 1)
            for norm in FACTORS["clip_norm"]
        ]
    return curves


def epochs(runs: Runs):
    curves = {}
    for epsilon in EPSILONS:
        curves["epochs", "", epsilon] = [
            (count, runs.accuracies(runs.proposed(epsilon=epsilon, epochs=count)), count == 40)
            for count in EPOCHS
        ]
    return curves


def epsilon(runs: Runs):
    points = [
        (budget, runs.accuracies(runs.proposed(epsilon=budget)), False) for budget in MANY_EPSILONS
    ]
    return {("epsilon", "", 4.0): points}


PARTS = {"grid": grid, "steps": steps, "clip_norm": clip_norm, "epochs": epochs, "epsilon": epsilon}


def draw(axis: str, curves, folder: Path) -> None:
    """Draws one picture: accuracy against one number, with the proposal marked."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullLocator

    with mpl.rc_context({"svg.hashsalt": "bevel", "font.size": 9, "svg.fonttype": "path"}):
        figure = Figure(figsize=(5.6, 3.4), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        for (_, label, budget), points in curves.items():
            x = [p[0] for p in points]
            y = [100 * statistics.median(p[1]) for p in points]
            name = f"epsilon {budget:g}" + (f", {label}" if label else "")
            dashed = label.startswith("best")
            style = "--" if dashed else "o-"
            axes.plot(x, y, style, color=COLORS[budget], ms=4, lw=1.4, label=name)
            if not dashed:
                low, high = ([100 * f(p[1]) for p in points] for f in (min, max))
                axes.fill_between(x, low, high, color=COLORS[budget], alpha=0.15, lw=0)
            for a, b, p in zip(x, y, points, strict=True):
                if p[2]:
                    axes.plot([a], [b], "D", color=COLORS[budget], ms=9)
        axes.set_xscale("log")
        ticks = sorted({p[0] for points in curves.values() for p in points})
        if axis != "learning_rate":
            axes.set_xticks(ticks[:: 2 if len(ticks) > 7 else 1])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axes.set_xlabel(LABELS[axis])
        axes.set_ylabel("test accuracy, %")
        if axis != "epsilon":
            axes.plot([], [], "D", color="#777777", ms=7, ls="", label="proposed")
            handles, names = axes.get_legend_handles_labels()
            figure.legend(
                handles, names, loc="outside lower center", ncols=2, frameon=False, fontsize=8
            )
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#e4e4e4", lw=0.6)
        figure.savefig(folder / f"choosing_{axis}.svg", metadata={"Date": None})


def table(curves) -> None:
    print("| what changes | epsilon | proposed | accuracy there | best of the curve | at |")
    print("| --- | --- | --- | --- | --- | --- |")
    for (axis, label, budget), points in curves.items():
        best = max(points, key=lambda p: statistics.median(p[1]))
        at_best = f"{statistics.median(best[1]):.1%} | {best[0]:g}"
        for x, accuracies, proposed in points:
            if proposed:
                here = f"{statistics.median(accuracies):.1%}"
                print(f"| {LABELS[axis]} | {budget:g} | {x:g} | {here} | {at_best} |")
        if axis == "epsilon" or label.startswith("best"):
            shown = ", ".join(f"{x:g}: {statistics.median(a):.1%}" for x, a, _ in points)
            print(f"| {LABELS[axis]} {label} | {budget:g} | {shown} | | | |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", default="digits")
    parser.add_argument("--model", default="conv", choices=("conv", "mlp", "linear"))
    parser.add_argument("--widths", default="8,16")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--output", type=Path, default=Path("docs"))
    parser.add_argument("--results", type=Path, help="default: OUTPUT/choosing.jsonl")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    widths = tuple(int(width) for width in options.widths.split(","))
    base = Config(
        PlanTable(1, 1),
        data=DataTable(source=options.data),
        model=ModelTable(kind=options.model, widths=widths),
    )
    runs = Runs(base, options.seeds, options.results or options.output / "choosing.jsonl")
    found = {}
    for name in options.parts.split(","):
        curves = PARTS[name](runs)
        found |= curves
        for axis in {key[0] for key in curves}:
            draw(axis, {k: v for k, v in curves.items() if k[0] == axis}, options.output)
    table(found)
    device = jax.devices()[0]
    kind = platform.machine() if device.platform == "cpu" else device.device_kind
    print(
        f"\n{kind}, {os.cpu_count()} cores, {datetime.date.today()}, jax {jax.__version__}, bevel "
        f"{bevel.__version__}; {options.data}, {options.model} {options.widths}, "
        f"{runs.parameters:,} parameters, {options.seeds} seeds"
    )


if __name__ == "__main__":
    main()
