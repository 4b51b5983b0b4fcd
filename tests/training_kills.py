"""Trains and kills the trainer, again and again: run by test_training_survives_kills.py.

python tests/training_kills.py FOLDER KILLS. Prints, as JSON, what was seen.

Every round is a process of its own, forked before JAX is used, that trains until it kills itself
(SIGKILL) at a moment that it drew before. Runs with an even number stay on one mesh, the others
change it from round to round.
"""

import collections
import json
import os
import random
import signal
import sys
import threading
import time
import warnings
from pathlib import Path

import jax
import numpy as np

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
sys.path.insert(0, str(Path(__file__).resolve().parent))

import simulator  # noqa: E402
import training_runs as runs  # noqa: E402

from bevel.accounting.ledger.locked_file import LockedFile  # noqa: E402
from bevel.sharding import make_mesh  # noqa: E402
from bevel.training import checkpoint  # noqa: E402
from bevel.training.checkpoint import Checkpoints  # noqa: E402
from bevel.training.metrics_files import MetricsFiles, read_lines  # noqa: E402
from bevel.training.run_ledger import RunLedger  # noqa: E402

STEPS, EVERY = 12, 2
MESHES = ("data=8", "data=4,model=2", "data=2")
MOMENTS = (
    "while staging",
    "before a charge",
    "in a ledger line",
    "after a charge",
    "between both halves",
    "before the records",
    "any time",
)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(moment, count, delay):
    """Arranges for death at the `count`-th such moment, or `delay` seconds after it."""
    seen = collections.Counter()

    def hook(owner, name, before=None, after=None):
        original = getattr(owner, name)

        def replaced(*args, **kwargs):
            seen[name] += 1
            if before and seen[name] == count:
                before(*args)
            result = original(*args, **kwargs)
            if after and seen[name] == count:
                after()
            return result

        setattr(owner, name, replaced)

    def half_a_line(self, data):
        os.write(self._descriptor, data[: len(data) // 2])
        die()

    def soon(*_):
        threading.Timer(delay, die).start()

    if moment == "in a ledger line":
        hook(LockedFile, "append", before=half_a_line)
    elif moment == "after a charge":
        hook(LockedFile, "append", after=die)
    elif moment == "while staging":
        hook(Checkpoints, "stage", before=soon)
    elif moment == "before a charge":
        hook(RunLedger, "release", before=lambda *_: die())
    elif moment == "between both halves":
        # A publication renames the private half, then the released one.
        count = 2 * count - 1
        hook(checkpoint, "replace_folder", after=die)
    elif moment == "before the records":
        hook(MetricsFiles, "write_metrics", before=lambda *_: die())
    else:
        threading.Timer(20 * delay, die).start()


def train(folder, mesh, cache):
    jax.config.update("jax_compilation_cache_dir", str(cache))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    warnings.simplefilter("ignore")  # a torn line of the ledger, which is the point
    trainer = runs.trainer(
        config=runs.plan(iterations=STEPS),
        mesh=make_mesh(mesh),
        rules=[("*", jax.sharding.PartitionSpec())],
    )
    options = runs.options(checkpoint_every=EVERY)
    state = runs.fit(folder, of=trainer, options=options)
    leaves = runs.arrays(state)
    np.savez(folder / "final.npz", *leaves)


def in_a_process(work):
    """The status of a forked process that does `work`."""
    child = os.fork()
    if not child:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitpid(child, 0)[1]


def one_run(folder, number, chance, cache, seen):
    """Trains to the end, killed on the way. Returns how often."""
    kills = 0
    while not (folder / "final.npz").exists():
        mesh = MESHES[0] if number % 2 == 0 else chance.choice(MESHES)
        moment, count = chance.choice(MOMENTS), chance.randint(1, 3)
        delay = chance.uniform(0, 0.3)

        def work(mesh=mesh, moment=moment, count=count, delay=delay):
            die_at(moment, count, delay)
            train(folder, mesh, cache)

        status = in_a_process(work)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            kills += 1
            seen[moment] += 1
        elif status:
            raise SystemExit(f"run {number}, {moment} {count}: the trainer failed ({status})")
    return kills


def checked(folder, expected, exact):
    """Raises unless the run is what an unbroken one would have been, without a trace of kills."""
    if exact:
        found, whole = (simulator.files_of(f / "released") for f in (folder, expected))
        assert found == whole, {
            name for name in found | whole if found.get(name) != whole.get(name)
        }
    with np.load(folder / "final.npz") as final, np.load(expected / "final.npz") as unbroken:
        for name in unbroken:
            if exact:
                assert final[name].tobytes() == unbroken[name].tobytes(), name
            else:
                np.testing.assert_allclose(final[name], unbroken[name], atol=1e-5)
    lines = (folder / "released" / "ledger.jsonl").read_text().splitlines()[1:]
    entries = [json.loads(line)["entry"] for line in lines]
    assert all(entry["attempt"] == 0 for entry in entries)
    charged = [step for entry in entries for step in range(entry["first"], entry["stop"])]
    assert charged == list(range(STEPS)), charged
    steps = [line["step"] for line in read_lines(folder / "released" / "metrics.jsonl")]
    assert steps == list(range(EVERY, STEPS + 1, EVERY)), steps
    shown = {path.name for path in (folder / "released").iterdir()}
    assert shown == {"checkpoints", "ledger.jsonl", "metrics.jsonl", "run.json"}, shown
    raw = [line["step"] for line in read_lines(folder / "private" / "raw.jsonl")]
    assert raw == sorted(set(raw)), raw


def main(root, kills):
    root.mkdir(parents=True, exist_ok=True)
    cache, chance = root / "compiled", random.Random(5)
    seen, begun = collections.Counter(), time.monotonic()
    unbroken = root / "unbroken" / "run"  # runs have one name, since it is in what they release
    unbroken.mkdir(parents=True)
    assert in_a_process(lambda: train(unbroken, MESHES[0], cache)) == 0
    total, number = 0, 0
    while total < kills:
        folder = root / str(number) / "run"
        folder.mkdir(parents=True)
        total += one_run(folder, number, chance, cache, seen)
        checked(folder, unbroken, exact=number % 2 == 0)
        number += 1
    print(json.dumps({"kills": total, "runs": number, "seconds": time.monotonic() - begun, **seen}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
