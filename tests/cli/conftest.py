"""A config and data so small that a run takes seconds."""

import numpy as np
import pytest

import bevel.report


@pytest.fixture(name="config_file")
def fixture_config_file(tmp_path):
    """A config of four steps of a linear model on 64 points, in a folder of its own."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 96)
    x = (rng.normal(size=(96, 4)) + y[:, None]).astype(np.float32)
    data = tmp_path / "points.npz"
    np.savez(data, x_train=x[:64], y_train=y[:64], x_test=x[64:], y_test=y[64:])
    path = tmp_path / "config.toml"
    path.write_text(
        f"""
[data]
source = "{data}"
classes = 2
[model]
kind = "linear"
[plan]
noise_multiplier = 1.0
delta = 1e-3
batch_size = 16
steps = 4
[optimizer]
learning_rate = 0.5
ema_decay = 0.9
[mesh]
axes = "data=4,model=2"
cpu_devices = 8
[run]
folder = "{tmp_path / "run"}"
checkpoint_every = 2
"""
    )
    return path


@pytest.fixture(name="reports")
def fixture_reports(monkeypatch):
    """No report is written: what was asked for is kept."""
    asked = []

    def write_report(run_folder, output=None, include_raw=False):
        asked.append((run_folder, output, include_raw))
        return output or f"{run_folder}/report.html"

    monkeypatch.setattr(bevel.report, "write_report", write_report)
    return asked
