"""A result is read from the released half of a search."""

import pytest
import training_runs
from searches import of_trials, search

from bevel.tuning import Price
from bevel.tuning.result import read_result


@pytest.mark.full
def test_a_result_needs_nothing_private(tmp_path, monkeypatch):
    of_trials(monkeypatch, 2)
    result = search(tmp_path / "search")
    (tmp_path / "search/released").rename(tmp_path / "released")
    (tmp_path / "copy").mkdir()
    (tmp_path / "released").rename(tmp_path / "copy/released")
    price = Price(2.0, 1.0, 1e-5)
    found = read_result(tmp_path / "copy", training_runs.params(), price)
    assert training_runs.same_bits(found.params, result.params)
    assert (found.settings, found.score) == (result.settings, result.score)
    assert (found.epsilon, found.epsilon_of_one_trial) == (2.0, 1.0)
