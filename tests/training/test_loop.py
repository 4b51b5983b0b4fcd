"""The loop: batches of any size, metrics fetched without waiting. See test_folder_run.py."""

import jax.numpy as jnp
import numpy as np
import training_runs as runs

from bevel.batch_selection import PaddedSizes
from bevel.training.loop import PendingMetrics, loss_key_data
from bevel.training.metrics_files import read_lines


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
