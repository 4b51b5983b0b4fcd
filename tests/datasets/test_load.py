"""Every source is found by its name, and the test set is never trained on."""

import dataclasses

import numpy as np
import pytest

from bevel.datasets import DataTable, data_set
from bevel.datasets.load import source_files
from bevel.errors import FixArgumentsError, FixDataError


def rows(source):
    return source.read(np.arange(len(source)))


@pytest.fixture(name="npz")
def fixture_npz(tmp_path):
    """60 records of a file that has no test set, in a table of options."""
    path = tmp_path / "data.npz"
    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    np.savez(path, x=x, y=np.arange(60) % 3, person=np.arange(60) // 4)
    return DataTable(str(path), classes=3)


def test_the_split_of_the_digits_is_fixed():
    first, second = data_set(DataTable()), data_set(DataTable())
    assert (len(first.train), len(first.test)) == (1437, 360)
    assert first.spec.classes == 10
    assert rows(first.train)["x"].max() == 1.0
    np.testing.assert_array_equal(rows(first.test)["x"], rows(second.test)["x"])
    assert set(rows(first.test)["y"]) == set(range(10))


def test_tuning_sees_nothing_of_the_test_set():
    whole, part = data_set(DataTable()), data_set(DataTable(tune=True))
    assert len(part.train) + len(part.test) == len(whole.train)
    assert 0.15 < len(part.test) / len(whole.train) < 0.25
    tuned = np.concatenate([rows(part.train)["x"], rows(part.test)["x"]])
    everything = rows(whole.train)["x"]
    assert {x.tobytes() for x in tuned} == {x.tobytes() for x in everything}


def test_tuning_with_a_fraction_does_not_use_the_fraction(npz):
    table = dataclasses.replace(npz, test_fraction=0.3)
    whole, tuning = data_set(table), data_set(dataclasses.replace(table, tune=True))
    held_out = {x.tobytes() for x in rows(whole.test)["x"]}
    for part in (tuning.train, tuning.test):
        assert not held_out & {x.tobytes() for x in rows(part)["x"]}
    assert len(tuning.train) + len(tuning.test) == len(whole.train)


def test_no_user_is_in_both_parts(npz):
    data = data_set(dataclasses.replace(npz, user="person", test_fraction=0.4))
    assert data.units == len(np.unique(data.user_ids)) < 15
    test = {x.tobytes() for x in rows(data.test)["x"]}
    with np.load(npz.source) as file:
        tested = {
            person
            for x, person in zip(file["x"], file["person"], strict=True)
            if x.tobytes() in test
        }
    assert len(tested) == 15 - data.units


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, r"has no test set. Write test = 'PATH'.*test_fraction = 0.2"),
        ({"test_fraction": 1.5}, "test_fraction=1.5: pass a share between 0 and 1, both excluded"),
        ({"test_fraction": 1e-6}, "leaves one part empty"),
        ({"test_fraction": 0.2, "test": "other.npz"}, "also has test_fraction"),
        ({"source": "digit"}, "there is no file digit. Did you mean 'digits'"),
        ({"source": "digits", "test_fraction": 0.2}, "digits has a test set: leave it out"),
        ({"source": "digits", "test": "x.npz"}, "but also has a test set of its own"),
    ],
)
def test_what_is_wrong_is_named(npz, changes, message):
    with pytest.raises((FixArgumentsError, FixDataError), match=message):
        data_set(dataclasses.replace(npz, **changes))


def test_a_test_file_must_be_like_the_training_file(npz, tmp_path):
    other = tmp_path / "test.npz"
    np.savez(other, x=np.zeros((5, 3), np.float32), y=np.zeros(5, int))
    assert len(data_set(dataclasses.replace(npz, test=str(other), user="person")).test) == 5
    np.savez(other, x=np.zeros((5, 4), np.float32), y=np.zeros(5, int))
    with pytest.raises(FixDataError, match="Both must be equal"):
        data_set(dataclasses.replace(npz, test=str(other)))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("book.xlsx", "is a spreadsheet: save the sheet as CSV or Parquet"),
        ("notes.doc", r"unknown format \(.doc\)"),
    ],
)
def test_files_that_are_not_data(tmp_path, name, message):
    path = tmp_path / name
    path.write_bytes(b"PK")
    with pytest.raises(FixDataError, match=message):
        source_files(str(path))


def test_a_folder_without_data_and_a_pattern_of_several_files(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FixDataError, match="holds no images in folders named after classes"):
        data_set(DataTable(str(tmp_path / "empty")))
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("x,y\n1,2\n")
    with pytest.raises(FixDataError, match="names 2 files: name one of them"):
        data_set(DataTable(str(tmp_path / "*.csv")))
