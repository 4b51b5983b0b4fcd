"""The loop: batches of any size, metrics fetched without waiting. See test_folder_run.py."""

import contextlib
import json
import threading

import jax.numpy as jnp
import numpy as np
import training_runs as runs

from bevel.batch_selection import PaddedSizes
from bevel.training import Progress
from bevel.training.checkpoint import Checkpoints
from bevel.training.loop import PendingMetrics, loss_key_data
from bevel.training.metrics_files import read_lines
from bevel.training.releaser import THREAD


def test_empty_batches_still_add_noise_and_larger_ones_are_not_cut(tmp_path):
    plan = runs.plan(expected_batch_size=1, iterations=8)
    sizes = [len(plan.batch(step, runs.N)) for step in range(8)]
    assert 0 in sizes and max(sizes) > 1
    trainer = runs.trainer(config=plan, compilation_strategy=PaddedSizes((1,)))
    seen = []
    runs.fit(
        tmp_path / "run",
        of=trainer,
        options=runs.options(checkpoint_every=1),
        callback=lambda s, m: seen.append(np.asarray(s.params["w"])),
    )
    raw = list(read_lines(tmp_path / "run" / "private" / "raw.jsonl"))
    assert [row["batch_size"] for row in raw] == sizes
    assert raw[sizes.index(0)]["loss"] is None
    moved = [np.abs(a - b).max() for a, b in zip([0 * seen[0], *seen], seen, strict=False)]
    assert min(moved) > 1e-4  # with momentum and noise, every step moves


def test_measures_come_in_order_and_once():
    seen = PendingMetrics()
    for step in range(5):
        seen.add(step, 0, {"loss": jnp.float32(step)}, bytes([step] * 16))
    rows, digests = seen.take()
    assert [row["step"] for row in rows] == list(range(5)) and len(set(digests)) == 5
    assert seen.take() == ([], [])


def test_keys_of_losses_belong_to_the_seed():
    assert loss_key_data(3).tolist() == loss_key_data(3).tolist() != loss_key_data(4).tolist()
    assert loss_key_data(2**128 - 1).shape == (2,)


class Recorder(Progress):
    """Keeps what a run tells."""

    def __init__(self):
        self.told = []

    def working(self, what):
        self.told.append(("working", what))
        return contextlib.nullcontext()

    def begin(self, step, steps, budget):
        self.told.append(("begin", step, steps, budget))

    def advance(self, step):
        self.told.append(("advance", step))

    def checkpoint(self, metrics):
        self.told.append(("checkpoint", dict(metrics)))

    def raw(self, metrics):
        self.told.append(("raw", metrics["step"]))

    def warn(self, text):
        self.told.append(("warn", text))

    def end(self):
        self.told.append(("end",))


def test_a_run_tells_its_progress(tmp_path):
    progress, folder = Recorder(), tmp_path / "run"
    runs.fit(folder, options=runs.options(checkpoint_every=4, progress=progress))
    kinds = [told[0] for told in progress.told]
    assert kinds[:3] == ["working"] * 3
    assert progress.told[2] == ("working", "compiling for batches of 25")
    assert kinds[3] == "begin" and kinds[-1] == "end"
    assert [told[1] for told in progress.told if told[0] == "advance"] == list(range(1, 9))
    lines = (folder / "released" / "metrics.jsonl").read_text().splitlines()
    released = [told[1] for told in progress.told if told[0] == "checkpoint"]
    assert released == [json.loads(line) for line in lines]
    assert [told[1] for told in progress.told if told[0] == "raw"] == [3, 7]


def test_steps_go_on_while_a_release_is_written(tmp_path, monkeypatch):
    """A release that is only written once later steps were taken does not hold them up."""
    later, waited, real = threading.Event(), [], Checkpoints.wait

    class Watcher(Progress):
        def advance(self, step):
            if step == 7:
                later.set()

    def slow(checkpoints):
        if threading.current_thread().name.startswith(THREAD):
            waited.append(later.wait(20))
        real(checkpoints)

    monkeypatch.setattr(Checkpoints, "wait", slow)
    runs.fit(tmp_path / "run", options=runs.options(checkpoint_every=4, progress=Watcher()))
    assert waited == [True, True]


def test_warnings_about_raw_metrics_are_told_once_and_not_released(tmp_path):
    progress, folder, given = Recorder(), tmp_path / "run", runs.data()
    given["x"][::2] = np.nan
    runs.fit(folder, given=given, options=runs.options(progress=progress))
    (text,) = [told[1] for told in progress.told if told[0] == "warn"]
    assert "are not finite and count as zero" in text
    released = b"".join(p.read_bytes() for p in (folder / "released").glob("*.json*"))
    assert b"finite" not in released
