"""Without a folder nothing is written, and the callback is still called at checkpoints only."""

import numpy as np
import training_runs as runs


def test_callbacks_come_at_the_same_steps_with_the_same_epsilon(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = []
    options = runs.options(checkpoint_every=3, delta=1e-5)
    state = runs.fit(options=options, callback=lambda s, m: seen.append((m["step"], m["epsilon"])))
    assert [step for step, _ in seen] == [3, 6, 8] and int(state.step) == 8
    assert np.isclose(seen[-1][1], runs.plan().epsilon(8, delta=1e-5))
    assert list(tmp_path.iterdir()) == []
