"""Two runs to report on: one that was trained, on a mesh, and one that was written by hand."""

import json

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from bevel import DPSGDConfig
from bevel.accounting import Budget, Ledger, dpsgd_event
from bevel.sharding import make_mesh
from bevel.training import RunOptions, Trainer

STEPS = 4


def loss_fn(params, data, prng):
    out = data["x"] @ params["w"] + params["b"][None]
    loss = optax.softmax_cross_entropy_with_integer_labels(out, data["y"]).mean()
    return loss, {"accuracy": (out.argmax(-1) == data["y"]).mean()}


@pytest.fixture(scope="package")
def trained(tmp_path_factory):
    """The folder of a run on (4, 2) places, whose ledger lies outside of it."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 4)).astype(np.float32)
    data = {"x": x, "y": (x[:, 0] > 0).astype(np.int32)}
    config = DPSGDConfig.default(num_examples=200, expected_batch_size=24, iterations=STEPS)
    trainer = Trainer(
        config=config.calibrate(epsilon=3, delta=1e-3),
        loss_fn=loss_fn,
        optimizer=optax.sgd(0.5),
        mesh=make_mesh("data=4,model=2"),
        rules=[("w", P(None, "model")), ("*", P())],
    )
    folder = tmp_path_factory.mktemp("trained") / "run"
    trainer.fit(
        data,
        {"w": jnp.zeros((4, 2)), "b": jnp.zeros(2)},
        folder=folder,
        evaluate=lambda params: {"held_out_accuracy": 0.5 + float(params["b"][0]) * 0},
        options=RunOptions(
            checkpoint_every=2,
            compilations=1,
            progress=False,
            tensorboard=False,
            ledger=folder.parent / "all.jsonl",
        ),
    )
    return folder


def record_of(name="by hand", **changed):
    return {
        "name": name,
        "status": "complete",
        "started": "2031-01-01T00:00:00+00:00",
        "finished": "2031-01-01T01:00:00+00:00",
        "plan": {"fingerprint": "f" * 64, "description": "a plan"},
        "unit": "example",
        "relation": "ADD_OR_REMOVE_ONE",
        "budget": {"epsilon": 8.0, "delta": 1e-5},
        "delta": 1e-5,
        "steps": 10,
        "data": {"records": 1000, "units": 1000, "expected_batch_size": 10.0},
        "key_is_secret": True,
        "versions": {"bevel": "0.1.0", "jax": "0.12.0", "jaxlib": None},
        "commit": "c" * 40,
        "surroundings": {"mesh": {"data": [4, "Auto"], "model": [2, "Auto"]}, "device": "cpu"},
        "arrays": [row("params/w", "P(None, 'model')", 2), row("params/b", "P()", 1)],
        "collectives": [],
    } | changed


def row(path, spec, parts):
    return {
        "path": path,
        "shape": [8, 16],
        "dtype": "float32",
        "spec": spec,
        "shard_shape": [8, 16 // parts],
        "bytes": 512,
        "bytes_per_device": 512 // parts,
        "devices": 8,
        "replication": 8 / parts,
        "note": "",
    }


@pytest.fixture
def by_hand(tmp_path):
    """Makes the folder of a run; what is not an argument is changed in its run.json."""

    def make(metrics=(), raw=None, events=None, limited=True, runs=("by hand",), **changed):
        folder = tmp_path / "run"
        folder.mkdir()
        record = record_of(**changed)
        (folder / "run.json").write_text(json.dumps(record))
        (folder / "secrets.json").write_text('{"root": "5ec2e7"}')
        write_lines(folder / "metrics.jsonl", metrics)
        if raw is not None:
            write_lines(folder / "raw.jsonl", raw)
        events = [dpsgd_event(1.1, 10, sampling_prob=0.01)] if events is None else events
        terms = {"unit": record["unit"], "relation": record["relation"]}
        terms["budget"] = Budget(**record["budget"]) if limited else None
        with Ledger.open(folder / "ledger.jsonl", **terms) as ledger:
            for number, name in enumerate(runs):
                charged = ledger.run(name, plan="f" * 64, key=f"{number:064x}")
                for first, event in enumerate(events):
                    charged.charge(first, first + 1, event)
        return folder

    return make


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def metric_lines():
    return [
        {"step": s, "epsilon": s / 5, "delta": 1e-5, "attempt": 0, "examples_per_second": 9.0}
        | {"test_accuracy": s / 10, "test_loss": 1 / s}
        for s in (2, 4, 6, 8, 10)
    ]


@pytest.fixture
def raw_lines():
    return [
        {"step": s, "attempt": 0, "batch_size": 9 + s % 3, "loss": 2 - s / 10}
        | {"clipped_fraction": 0.25, "clip_norm": 1.0, "norm_quantiles": [0.1, 0.9, 7.0]}
        for s in range(10)
    ]
