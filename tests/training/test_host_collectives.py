"""How often the processes of a run wait for each other outside of the compiled step."""

import json

import jax
import numpy as np
import pytest
import training_runs as runs
from jax.experimental import multihost_utils
from two_processes import launched

from bevel.sharding import make_mesh

NAMES = ("broadcast_one_to_all", "process_allgather", "sync_global_devices")
IN_A_RELEASE = 13  # in a folder: 7 of bevel and 6 of Orbax

PROGRAM = """
process, folder = sys.argv[2:]
import json
import test_host_collectives as test

counts = {name: test.counted_fit(f"{folder}/{name}", *sizes) for name, sizes in test.RUNS.items()}
with open(f"{folder}/{process}.json", "w") as file:
    json.dump(counts, file)
"""
RUNS = {"one release": (8, 8), "twice the steps": (16, 16), "more releases": (16, 4)}


def counting(replace, of=None):
    """Counts the calls of the functions with which processes wait for each other."""
    calls, inside = [], []

    def counted(name, function):
        def call(*arguments, **options):
            calls.extend([name] if not inside else [])  # one of them calls another
            inside.append(name)
            try:
                return function(*arguments, **options)
            finally:
                inside.pop()

        return call

    for name in NAMES:
        replace(multihost_utils, name, counted(name, (of or vars(multihost_utils))[name]))
    return calls


def fit(folder, steps, every):
    trainer = runs.trainer(config=runs.plan(iterations=steps), mesh=make_mesh("data=8"))
    runs.fit(folder, of=trainer, options=runs.options(checkpoint_every=every, delta=1e-6))


def counted_fit(folder, steps, every):
    """The number of host collectives in one call of `fit`."""
    with pytest.MonkeyPatch.context() as patch:
        calls = counting(patch.setattr)
        fit(folder, steps, every)
    return len(calls)


def test_steps_make_no_host_collectives_and_releases_few(monkeypatch):
    """Simulates two processes in which everything is equal."""
    doubled = {
        "broadcast_one_to_all": lambda tree: tree,
        "process_allgather": lambda tree: jax.tree.map(lambda x: np.stack([x, x]), tree),
        "sync_global_devices": lambda name: None,
    }
    calls = counting(monkeypatch.setattr, doubled)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    counts = {}
    for name, sizes in RUNS.items():
        fit(None, *sizes)
        counts[name] = len(calls)
        calls.clear()
    assert counts["one release"] == counts["twice the steps"] > 0
    assert counts["more releases"] == counts["one release"] + 3  # whether to stop, three times


@pytest.mark.full
def test_two_processes_exchange_nothing_in_steps_and_little_in_a_release(tmp_path):
    launched(PROGRAM, tmp_path)
    one, other = (json.loads((tmp_path / f"{k}.json").read_text()) for k in range(2))
    assert one == other and one["one release"] == one["twice the steps"]
    assert 0 < (one["more releases"] - one["one release"]) / 3 <= IN_A_RELEASE
