"""Train a private model of a table of people: will a person see a doctor this year?

The config examples/table.toml declares the columns, and names `build` below as the model: for each
column of numbers a curve, and for each category a number. The made-up table has the same columns.

python examples/private_table.py                        # a made-up table
bevel train examples/table.toml --data.source=mine.csv  # a table of your own, with these columns
"""

import csv
import tempfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from bevel.cli import main
from bevel.models import Model
from bevel.training import load

KNOTS = 7  # public points between which a curve is straight


def build(data):
    (columns,) = data.shape
    knots = jnp.linspace(-1.0, 1.0, KNOTS)  # bevel scales every number to [-1, 1]

    def features(x):  # x has shape (B, columns)
        distance = jnp.abs(x[:, :, None] - knots[None, None, :]) * (KNOTS - 1) / 2
        hats = jnp.maximum(1.0 - distance, 0.0)  # 1 at a knot, 0 at the next ones
        return jnp.concatenate([x, hats.reshape(len(x), -1)], axis=1)

    def init(key):
        return {
            "w": jnp.zeros((columns * (1 + KNOTS), data.classes)),
            "b": jnp.zeros((1, data.classes)),
        }

    def predict(params, x):
        logits = features(x) @ params["w"]
        return logits + jnp.broadcast_to(params["b"], logits.shape)

    return Model(init, predict)


def made_up(seed, persons):
    """The columns of a table that nobody is in. What decides a visit is drawn at random."""
    rng = np.random.default_rng(seed)
    years = rng.choice([1, 3, 5], persons, p=[0.1, 0.6, 0.3])
    person = np.repeat(np.arange(persons), years)
    rows = len(person)
    fixed = {  # of a person, the same in all years
        "site": rng.integers(1, 7, persons),
        "coinsurance": rng.choice([0, 25, 50, 95, 100], persons, p=[0.4, 0.15, 0.1, 0.15, 0.2]),
        "highest_payment": rng.uniform(100, 1000, persons).round(),
        "female": rng.integers(0, 2, persons),
        "schooling": rng.normal(12, 3, persons).clip(0, 20).round(),
        "income": rng.gamma(3, 3500, persons).clip(0, 25000).round(),
        "family_size": rng.integers(1, 8, persons),
        "health": rng.choice(4, persons, p=[0.5, 0.35, 0.1, 0.05]),
        "general_health": rng.normal(72, 15, persons).clip(0, 100).round(1),
        "mental_health": rng.normal(75, 14, persons).clip(0, 100).round(1),
        "chronic_diseases": rng.gamma(2, 5, persons).clip(0, 50).round(1),
        "physical_limitation": rng.integers(0, 8, persons) == 0,
        "luck": rng.normal(0, 1, persons),  # what no column says
    }
    of = {name: values[person] for name, values in fixed.items()}
    of["year"] = np.concatenate([np.arange(1, count + 1) for count in years])
    of["age"] = rng.gamma(2, 13, persons).clip(0, 60)[person] + of["year"] - 1
    of["child"] = of["age"] < 18
    of["deductible_plan"] = of["coinsurance"] == 100

    z = {name: (v - v.mean()) / v.std() for name, v in of.items()}
    score = z.pop("luck")
    names = sorted(z)
    for name in names:  # a line and a bend for each column, and products of some pairs
        score = score + rng.normal(0, 0.3) * z[name]
        score = score + rng.normal(0, 0.3) * np.abs(z[name] - rng.normal())
    for _ in range(8):
        first, second = rng.choice(names, 2, replace=False)
        score = score + rng.normal(0, 0.2) * z[first] * z[second]
    chance = 1 / (1 + np.exp(np.quantile(score, 0.3) - score))

    table = {"person": person} | {name: of[name].astype(float) for name in names}
    for name, missing in [("highest_payment", of["coinsurance"] == 0), ("general_health", 0.1)]:
        table[name] = np.where(rng.random(rows) < missing, np.nan, table[name])
    table["health"] = np.array(["excellent", "good", "fair", "poor"])[of["health"]]
    return table | {"visited": np.where(rng.random(rows) < chance, "yes", "no")}


def write(table, path):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        for row in zip(*(column.tolist() for column in table.values()), strict=True):
            writer.writerow(["" if value != value else value for value in row])


if __name__ == "__main__":
    folder = Path(tempfile.mkdtemp())
    table = made_up(seed=0, persons=5000)
    write(table, folder / "made_up.csv")
    config = Path(__file__).with_name("table.toml")
    places = [f"--data.source={folder / 'made_up.csv'}", f"--run.folder={folder / 'run'}"]
    code = main(["train", str(config), *places, f"--model.module={__file__}:build", "--quiet"])
    run = load(folder / "run")
    visited = (table["visited"] == "yes").mean()
    print(f"{len(table['person']):,} rows, {visited:.0%} with a visit; exit code {code}")
    print(
        f"test accuracy {run.metrics['test_accuracy']:.1%} after {run.step} steps, "
        f"epsilon {run.metrics['epsilon']:.2f} for all rows of a person"
    )
