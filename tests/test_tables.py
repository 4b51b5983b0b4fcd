"""The benchmark of tables gives every model the same columns, persons and ranges."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

_file = Path(__file__).resolve().parents[1] / "benchmarks" / "tables.py"


@pytest.fixture(name="tables", scope="module")
def fixture_tables():
    """The module of the benchmark, which extends the path when it is imported."""
    path = list(sys.path)
    spec = importlib.util.spec_from_file_location("benchmark_of_tables", _file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    sys.path[:] = path
    return module


@pytest.fixture(name="split", scope="module")
def fixture_split(tables, tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "made_up.csv"
    tables.private_table.write(tables.private_table.made_up(seed=0, persons=200), path)
    return tables.split_of(path, seed=0)


def test_the_data_has_the_columns_that_the_config_declares(tables):
    config = tables.CONFIG.data
    written = {*tables.NAMES, "health", "visited"}
    assert written == {*config.columns, config.user, config.y}
    assert set(tables.private_table.made_up(seed=0, persons=20)) == written


def test_a_split_keeps_the_rows_of_a_person_together(tables, split):
    assert split.data.user_ids is not None
    rows = len(split.data.train) + len(split.data.test)
    assert len(split.data.train) == len(split.data.user_ids)
    assert 0.6 < len(split.data.train) / rows < 0.95
    assert 100 < split.data.units < 200


def test_other_libraries_get_the_value_that_bevel_encodes(tables, split):
    x, _ = split.arrays("train")
    values = tables.one_value_per_column(x)
    assert values.shape == (len(x), len(tables.COLUMNS))
    start = 0
    for column, value in zip(tables.COLUMNS, values.T, strict=True):
        features = x[:, start : start + column.width]
        start += column.width
        if isinstance(column, tables.CategoryColumn):
            again = [f"category {k}" for k in range(column.width)]
            np.testing.assert_array_equal(features, value[:, None] == np.array(again))
        else:
            np.testing.assert_array_equal(features[:, 0], value.astype(float))
            assert (np.abs(features) <= 1).all()
    assert start == x.shape[1]


def test_the_features_of_a_column_have_at_most_norm_one(tables, split):
    """`data_norm` of the logistic regression relies on it."""
    x, _ = split.arrays("train")
    assert (np.square(x).sum(1) <= len(tables.COLUMNS) + 1e-6).all()


def test_one_answer_for_all_has_no_order(tables, split):
    scores = tables.constant(split)
    assert scores.auc == 0.5
    visits = split.arrays("test")[1].mean()
    assert scores.accuracy == pytest.approx(max(visits, 1 - visits))
