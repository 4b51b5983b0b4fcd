"""Private models of a table of people: bevel against other libraries, at the same epsilon.

    python benchmarks/tables.py                     # the table of docs/results.md
    python benchmarks/tables.py --choose            # how each model got its settings
    python benchmarks/tables.py --write visits.csv  # the data, for examples/table.toml

The data is the RAND Health Insurance Experiment as statsmodels ships it: 20,190 rows, each of which
is a year of a person. A model predicts whether the person sees a doctor in that year, and is
measured by the area under the ROC curve (AUC) on a fifth of the persons. Every seed is another
split, with other noise, and all models have the same splits, columns and ranges.

The other libraries need older versions than bevel:

    pip install statsmodels diffprivlib interpret-core 'scikit-learn<1.8' 'scipy<1.18'

No setting was chosen on this data. bevel's batch sizes, steps and clip norms are those of `bevel
plan`. Learning rates, and the settings of the other private models, are the best on three made-up
tables (examples/private_table.py): `--choose` prints the comparison.
"""

import argparse
import csv
import dataclasses
import datetime
import functools
import importlib.metadata
import importlib.resources
import math
import os
import platform
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))

import jax
import numpy as np
import private_table

from bevel.choosing import ChosenNumber, Request, propose
from bevel.cli.config import Config, read_config
from bevel.cli.job import Job, use_cpu_devices
from bevel.datasets import DataSet, data_set
from bevel.datasets.columns import CategoryColumn, columns_of

CONFIG = read_config(Path(private_table.__file__).with_name("table.toml"))
EPSILON, DELTA = 1.0, 1e-6
SEEDS, MADE_UP = 5, 3
VERSIONS = (
    "bevel",
    "jax",
    "numpy",
    "scipy",
    "scikit-learn",
    "statsmodels",
    "interpret-core",
    "diffprivlib",
)
# The columns of examples/table.toml, by their names in statsmodels.
NAMES = {
    "person": "zper", "year": "year", "site": "site", "coinsurance": "coins",
    "deductible_plan": "idp", "highest_payment": "mdeoff", "age": "xage", "female": "female",
    "child": "child", "schooling": "educdec", "income": "income", "family_size": "num",
    "general_health": "ghindx", "mental_health": "mhi", "chronic_diseases": "disea",
    "physical_limitation": "physlm",
}  # fmt: skip
HEALTH = {"hlthg": "good", "hlthf": "fair", "hlthp": "poor"}


def visits() -> list[dict[str, str]]:
    """The rows of the experiment. Each one is computed from one row of the file."""
    folder = importlib.resources.files("statsmodels.datasets") / "randhie" / "src"
    rows = csv.DictReader((folder / "randhie.csv").read_text("utf-8").splitlines())
    return [
        {name: row[original] for name, original in NAMES.items()}
        | {"health": next((HEALTH[name] for name in HEALTH if row[name] == "1"), "excellent")}
        | {"visited": "yes" if float(row["mdvis"]) > 0 else "no"}
        for row in rows
    ]


def write(rows: list[dict[str, str]], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


class Split(NamedTuple):
    """A training set and a test set, which have no person in common."""

    data: DataSet
    seed: int

    def arrays(self, part: str) -> tuple[np.ndarray, np.ndarray]:
        source = getattr(self.data, part)
        batch = source.read(np.arange(len(source)))
        return batch["x"].astype(np.float64), batch["y"]


def split_of(source: Path, seed: int) -> Split:
    table = dataclasses.replace(CONFIG.data, source=str(source), split_seed=seed)
    return Split(data_set(table), seed)


class Scores(NamedTuple):
    auc: float
    accuracy: float


def scores(split: Split, margins: np.ndarray) -> Scores:
    """Of margins, which are positive where a visit is predicted."""
    from sklearn.metrics import roc_auc_score

    y = split.arrays("test")[1]
    return Scores(float(roc_auc_score(y, margins)), float(((margins > 0) == y).mean()))


def bevel_model(
    split: Split, model: str, rate: float, *, persons: bool = False, private: bool = True
) -> Scores:
    """A run with the numbers of `bevel plan`, and `rate` times its learning rate."""
    user_ids = split.data.user_ids if persons else None
    data = dataclasses.replace(split.data, user_ids=user_ids)
    table = CONFIG.model
    if model != "additive":
        table = dataclasses.replace(table, module=None, kind=model)
    else:
        table = dataclasses.replace(table, module=f"{private_table.__file__}:build")
    config = dataclasses.replace(CONFIG, model=table)
    parameters = jax.eval_shape(_job(config, data).init)
    sizes = [math.prod(x.shape) for x in jax.tree.leaves(parameters)]
    proposed = _proposed(data.units, "user" if persons else "example", sum(sizes))
    plan = dataclasses.replace(
        CONFIG.plan,
        mechanism="dpsgd" if private else "none",
        epsilon=EPSILON if private else None,
        delta=DELTA,
        batch_size=proposed["batch_size"].value,
        steps=int(proposed["steps"].value),
        clip_norm=proposed["clip_norm"].value,
        examples_per_user=CONFIG.plan.examples_per_user if persons else 1,
    )
    optimizer = dataclasses.replace(
        CONFIG.optimizer, learning_rate=rate * proposed["learning_rate"].value
    )
    # Known noise, so that anyone can repeat the run: fit for public data only.
    options = dataclasses.replace(CONFIG.run, test_seed=split.seed, checkpoint_every=plan.steps)
    job = _job(
        dataclasses.replace(config, plan=plan, optimizer=optimizer, run=options),
        data,
    )
    state = job.fit(progress=False)
    params = job.trainer.released(state).evaluated
    logits = np.asarray(job.model.predict(params, split.arrays("test")[0].astype(np.float32)))
    return scores(split, logits[:, 1] - logits[:, 0])


@functools.cache
def _proposed(units: int, unit: str, parameters: int) -> dict[str, ChosenNumber]:
    request = Request(
        num_units=units, unit=unit, epsilon=EPSILON, delta=DELTA, parameters=parameters
    )
    return propose(request).choices


def _job(config: Config, data: DataSet) -> Job:
    job = Job(config)
    vars(job)["data"] = data  # read once for all models
    return job


def constant(split: Split) -> Scores:
    """The more common class of the training set, for everyone."""
    share = split.arrays("train")[1].mean()
    return scores(split, np.full(len(split.data.test), share - 0.5))


def of_sklearn(split: Split, model: Any, encoded: Callable[..., Any] = np.asarray) -> Scores:
    """A model with the interface of scikit-learn, on the features that bevel's models get."""
    x, y = split.arrays("train")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)
        # Of DP-EBM: its noise is known here, as bevel's is.
        warnings.filterwarnings("ignore", "Privacy violation: using a fixed random_state")
        model.fit(encoded(x), y)
    return scores(split, model.predict_proba(encoded(split.arrays("test")[0]))[:, 1] - 0.5)


def boosted_trees(split: Split) -> Scores:
    from sklearn.ensemble import HistGradientBoostingClassifier

    model = HistGradientBoostingClassifier(max_depth=3, learning_rate=0.05, random_state=split.seed)
    return of_sklearn(split, model)


def private_ebm(split: Split, max_rounds: int, learning_rate: float) -> Scores:
    from interpret.privacy import DPExplainableBoostingClassifier

    kinds = ["nominal" if isinstance(c, CategoryColumn) else "continuous" for c in COLUMNS]
    model = DPExplainableBoostingClassifier(
        feature_types=kinds,
        privacy_bounds={i: (-1.0, 1.0) for i, kind in enumerate(kinds) if kind == "continuous"},
        epsilon=EPSILON,
        delta=DELTA,
        max_rounds=max_rounds,
        learning_rate=learning_rate,
        random_state=split.seed,
        n_jobs=1,
    )
    return of_sklearn(split, model, one_value_per_column)


COLUMNS = columns_of(CONFIG.data.columns)


def one_value_per_column(x: np.ndarray) -> np.ndarray:
    """Undoes bevel's encoding, because DP-EBM has bins for categories of its own.

    DP-EBM refuses missing values. They become the middle of the range, as in bevel's encoding, and
    the features that mark them are left out: with them, DP-EBM did worse on the made-up tables.
    """
    values, start = [], 0
    for column in COLUMNS:
        part, start = x[:, start : start + column.width], start + column.width
        if isinstance(column, CategoryColumn):
            values.append(np.array([f"category {k}" for k in part.argmax(1)], object))
        else:
            values.append(part[:, 0].astype(object))
    return np.stack(values, axis=1)


def private_logistic(split: Split, c: float) -> Scores:
    from diffprivlib.models import LogisticRegression

    norm = math.sqrt(len(COLUMNS))  # the features of one column have norm at most 1
    return of_sklearn(
        split,
        LogisticRegression(
            epsilon=EPSILON, data_norm=norm, C=c, max_iter=1000, random_state=split.seed
        ),
    )


def private_forest(split: Split, trees: int, depth: int) -> Scores:
    from diffprivlib.models import RandomForestClassifier

    model = RandomForestClassifier(
        n_estimators=trees,
        max_depth=depth,
        epsilon=EPSILON,
        bounds=(-1, 1),
        classes=np.array([0, 1]),
        random_state=split.seed,
    )
    return of_sklearn(split, model)


def private_bayes(split: Split) -> Scores:
    from diffprivlib.models import GaussianNB

    return of_sklearn(split, GaussianNB(epsilon=EPSILON, bounds=(-1, 1), random_state=split.seed))


class Row(NamedTuple):
    """A model with the settings that `--choose` compares. The first one is what is measured."""

    model: str
    protects: str
    guarantee: str
    run: Callable[..., Scores]
    settings: tuple[dict[str, Any], ...] = ({},)


PURE, APPROXIMATE = "1, delta 0", "1"
RATES = tuple({"rate": rate} for rate in (1.0, 1 / 3))
FORESTS = (300, 4), (10, 5), (30, 5), (100, 3), (100, 5), (300, 3), (300, 6), (1000, 4)
MODELS = ("additive", "linear", "mlp")
BEVEL = {name: functools.partial(bevel_model, model=name) for name in MODELS}
ROWS = (
    Row("one answer for all", "nothing", "", constant),
    Row("scikit-learn, boosted trees", "nothing", "", boosted_trees),
    Row(
        "bevel, additive",
        "nothing",
        "",
        functools.partial(bevel_model, model="additive", private=False),
        RATES[:1],
    ),
    *(Row(f"bevel, {name}", "rows", APPROXIMATE, run, RATES) for name, run in BEVEL.items()),
    Row(
        "interpret, explainable boosting",
        "rows",
        APPROXIMATE,
        private_ebm,
        (
            {"max_rounds": 100, "learning_rate": 0.03},
            {"max_rounds": 30, "learning_rate": 0.1},
            {"max_rounds": 300, "learning_rate": 0.01},
        ),
    ),
    Row(
        "diffprivlib, logistic regression",
        "rows",
        PURE,
        private_logistic,
        ({"c": 0.01}, {"c": 0.001}, {"c": 0.1}, {"c": 1.0}),
    ),
    Row(
        "diffprivlib, forest",
        "rows",
        PURE,
        private_forest,
        tuple({"trees": t, "depth": d} for t, d in FORESTS),
    ),
    Row("diffprivlib, naive Bayes", "rows", PURE, private_bayes),
    *(
        Row(
            f"bevel, {name}",
            "persons",
            APPROXIMATE,
            functools.partial(run, persons=True),
            RATES[::-1],
        )
        for name, run in BEVEL.items()
    ),
)


def measure(splits: Iterable[Split]) -> None:
    splits = list(splits)
    print("| model | protects | epsilon | AUC, median | each | accuracy, median |")
    print("|" + " --- |" * 6)
    for row in ROWS:
        found = [row.run(split, **row.settings[0]) for split in splits]
        aucs = [score.auc for score in found]
        each = ", ".join(f"{auc:.3f}" for auc in aucs)
        accuracy = statistics.median(score.accuracy for score in found)
        print(
            f"| {row.model} | {row.protects} | {row.guarantee} | {statistics.median(aucs):.3f} | "
            f"{each} | {accuracy:.1%} |",
            flush=True,
        )
    rows = sorted(len(split.data.train) for split in splits)
    persons = sorted(split.data.units for split in splits)
    print(
        f"\ndelta {DELTA:g}; training sets of {rows[0]:,} to {rows[-1]:,} rows of {persons[0]:,} "
        f"to {persons[-1]:,} persons"
    )


def choose(splits: Iterable[Split]) -> None:
    splits = list(splits)
    print("| model | protects | settings | mean AUC on made-up tables | |\n|" + " --- |" * 5)
    for row in ROWS:
        means = {}
        for number, settings in enumerate(row.settings):
            means[number] = statistics.fmean(row.run(split, **settings).auc for split in splits)
        for number, settings in enumerate(row.settings):
            shown = ", ".join(f"{name} {value:.3g}" for name, value in settings.items())
            best = "best" if means[number] == max(means.values()) else ""
            print(
                f"| {row.model} | {row.protects} | {shown} | {means[number]:.4f} | {best} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--choose", action="store_true", help="compare settings on made-up tables")
    parser.add_argument("--write", type=Path, metavar="FILE.csv", help="write the data, and end")
    options = parser.parse_args()
    if options.write is not None:
        write(visits(), options.write)
        return
    use_cpu_devices(1)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        source = Path(name) / "table.csv"
        if options.choose:
            choose(_made_up(source))
        else:
            write(visits(), source)
            measure(split_of(source, seed) for seed in range(SEEDS))
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in VERSIONS)
    print(
        f"\n{time.perf_counter() - start:.0f} s; {platform.machine()}, {os.cpu_count()} cores; "
        f"{datetime.date.today()}; Python {platform.python_version()}, {versions}"
    )


def _made_up(path: Path) -> Iterable[Split]:
    for seed in range(1, MADE_UP + 1):
        private_table.write(private_table.made_up(seed, persons=5900), path)
        yield split_of(path, seed)


if __name__ == "__main__":
    main()
