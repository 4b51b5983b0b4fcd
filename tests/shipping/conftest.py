"""Runs to export: one that was trained with secret noise, and its export."""

import shutil

import pytest
import training_runs as runs

from bevel.accounting import Budget
from bevel.shipping import export

DELTA = 1e-3


@pytest.fixture(scope="package")
def finished(tmp_path_factory):
    """The folder of a complete run of 8 steps, with an average and a budget."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    trainer = runs.trainer(config=runs.config().make(), ema_decay=0.9)
    runs.fit(folder, of=trainer, options=runs.options(budget=Budget(5, DELTA)))
    return folder


@pytest.fixture(scope="package")
def exported(finished, tmp_path_factory):
    return export(finished, tmp_path_factory.mktemp("exported") / "export")


@pytest.fixture
def shipped(exported, tmp_path):
    """A copy of the export that a test may change."""
    return shutil.copytree(exported, tmp_path / "shipped")
