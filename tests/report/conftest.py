"""Folders of runs: one that was trained, on a mesh, and others that are written by hand."""

import json
import os

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from bevel import DPSGDConfig
from bevel.accounting import Budget, Ledger, dpsgd_event
from bevel.sharding import make_mesh
from bevel.training import RunOptions, Trainer

SECRET = "5ec2e7" * 10
STARTED, FINISHED = "2031-01-01T00:00:17+00:00", "2031-01-01T01:02:03+00:00"


def loss_fn(params, data, prng):
    out = data["x"] @ params["w"] + params["b"][None]
    loss = optax.softmax_cross_entropy_with_integer_labels(out, data["y"]).mean()
    return loss, {"accuracy": (out.argmax(-1) == data["y"]).mean()}


@pytest.fixture(scope="package")
def trained(tmp_path_factory):
    """The folder of a run on (4, 2) places, whose ledger lies outside of it."""
    x = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    config = DPSGDConfig.default(num_examples=200, expected_batch_size=24, iterations=4)
    trainer = Trainer(
        config=config.calibrate(epsilon=3, delta=1e-3),
        loss_fn=loss_fn,
        optimizer=optax.sgd(0.5),
        mesh=make_mesh("data=4,model=2"),
        rules=[("w", P(None, "model")), ("*", P())],
    )
    folder = tmp_path_factory.mktemp("trained") / "run"
    trainer.fit(
        {"x": x, "y": (x[:, 0] > 0).astype(np.int32)},
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
    """What released/run.json says."""
    return {
        "name": name,
        "ending": "complete",
        "plan": {"fingerprint": "f" * 64, "description": "a plan"},
        "unit": "example",
        "relation": "ADD_OR_REMOVE_ONE",
        "budget": {"epsilon": 8.0, "delta": 1e-5},
        "delta": 1e-5,
        "ledger": "ledger.jsonl",
        "steps": 10,
        "data": {
            "records": 1000,
            "units": 1000,
            "expected_batch_size": 10.0,
            "padded_sizes": [16, 32],
        },
        "key_is_secret": True,
        "versions": {"bevel": "0.1.0", "jax": "0.12.0", "jaxlib": None},
        "commit": "c" * 40,
        "surroundings": {
            "device": "cpu",
            "mesh": {"data": [4, "Auto"], "model": [2, "Auto"]},
            "processes": 1,
            "flags": "",
            "cores": 2,
            "versions": {"jax": "0.12.0"},
        },
        "programs_compiled_ahead": 2,
        "arrays": [row("params/w", "P(None, 'model')", 2), row("params/b", "P()", 1)],
        "collectives": [
            {
                "kind": "all-reduce",
                "dtype": "float32",
                "shapes": [[8, 16]],
                "bytes": 512,
                "group_size": 4,
                "axes": ["data"],
                "times": 1,
                "sent": 768,
                "line": "model.py:7",
                "operation": "jit(step)/psum",
            }
        ],
        "settings": {"optimizer.learning_rate": 0.5, "model.kind": "conv", "plan.steps": 10},
        "changes": [{"step": 4, "name": "optimizer.learning_rate", "from": 1.0, "to": 0.5}],
    } | changed


def private_record_of(**changed):
    """What private/run.json says."""
    return {
        "started": STARTED,
        "resumed": None,
        "finished": FINISHED,
        "status": "complete",
        "seconds": 3706.5,
        "seconds_waiting_for_data": 1.25,
        "seconds_by_part": {"compiling": 7.5, "waiting_for_data": 1.25, "steps": 3000.25},
        "steps_taken": 10,
        "programs_compiled": 2,
        "program": "d19e57" * 10,
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
    """Makes the folder of a run; what is not an argument is changed in released/run.json."""

    def make(
        metrics=(),
        raw=(),
        events=None,
        limited=True,
        runs=("by hand",),
        steps=10,
        private=None,
        at="run",
        **changed,
    ):
        folder = tmp_path / at
        released, closed = folder / "released", folder / "private"
        (released / "checkpoints" / "10").mkdir(parents=True)
        closed.mkdir(mode=0o700)
        record = record_of(**changed)
        (released / "run.json").write_text(json.dumps(record))
        write_lines(released / "metrics.jsonl", metrics)
        write_private(closed / "secrets.json", [{"root": SECRET}])
        write_private(closed / "run.json", [private_record_of(**private or {})])
        write_private(closed / "raw.jsonl", raw)
        events = [dpsgd_event(1.1, 10, sampling_prob=0.01)] if events is None else events
        terms = {"unit": record["unit"], "relation": record["relation"]}
        terms["budget"] = Budget(**record["budget"]) if limited else None
        with Ledger.open(released / record["ledger"], **terms) as ledger:
            for number, name in enumerate(runs):
                charged = ledger.run(name, plan="f" * 64, key=f"{number:064x}")
                for part, event in enumerate(events):
                    charged.charge(10 * part, 10 * part + steps, event)
        return folder

    return make


@pytest.fixture
def whole(by_hand, metric_lines, raw_lines):
    """A run that has everything, on (4, 2) places, whose ledger lies outside of its folder."""
    return by_hand(metrics=metric_lines, raw=raw_lines, ledger="../../all.jsonl")


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_private(path, lines):
    os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
    write_lines(path, lines)


@pytest.fixture
def metric_lines():
    return [
        {"step": s, "epsilon": s / 5, "delta": 1e-5, "attempt": 0}
        | {"test_accuracy": s / 10, "test_loss": 1 / s}
        for s in (2, 4, 6, 8, 10)
    ]


@pytest.fixture
def raw_lines():
    """Values that are found on no public page."""
    rows = [
        {"step": s, "attempt": 0, "batch_size": 9 + s % 3, "loss": 2.718281 - s / 10}
        | {"clipped_fraction": 0.253119, "clip_norm": 1.0, "norm_quantiles": [0.1, 0.9, 7.0]}
        | {"not_finite": 0, "signal_to_noise": 0.531 - s / 100}
        for s in range(10)
    ]
    for end in rows[1::2]:
        end["examples_per_second"] = 54321.0 + end["step"]
    return rows


@pytest.fixture
def audit_record():
    """What private/audit.json says."""
    return {
        "promised": 3.0001,
        "delta": 1e-3,
        "bound": 0.41239,
        "limit": 3.1,
        "significance": 0.05,
        "attack": "every step",
        "canaries": 100,
        "held_in": 52,
        "passed": True,
        "attacked": ["clipping", "noise"],
        "not_attacked": ["floating point"],
        "histogram": {"edges": [-1, 0, 1, 2], "held_in": [2, 30, 20], "held_out": [10, 28, 10]},
        "roc": {"fpr": [0, 0.5, 1], "tpr": [0.1, 0.7, 1]},
        "promise": {"fpr": [0, 0.5, 1], "tpr": [0.2, 0.9, 1]},
    }
