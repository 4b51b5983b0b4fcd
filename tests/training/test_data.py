"""Sources read only the requested records, and nothing for padding."""

import jax
import numpy as np
import pytest
import training_runs as runs

from bevel.batch_selection import ExamplesByUser
from bevel.errors import FixArgumentsError, FixDataError
from bevel.training import data
from bevel.training.data import ArraySource, RecordSource, check_length, rows, source_of


class Records:
    """Records which indices are read."""

    def __init__(self, columns, change=lambda number, record: record):
        self.columns, self.change, self.read = columns, change, []

    def __len__(self):
        return len(jax.tree.leaves(self.columns)[0])

    def __getitem__(self, number):
        self.read.append(number)
        return self.change(number, jax.tree.map(lambda x: x[number], self.columns))


class Batched(Records):
    def __getitems__(self, numbers):
        return [self[number] for number in numbers]


def sources(tmp_path):
    import grain

    columns = runs.data()
    saved = np.memmap(tmp_path / "x", np.float32, "w+", shape=columns["x"].shape)
    saved[:] = columns["x"]
    mapped = np.memmap(tmp_path / "x", np.float32, "r", shape=columns["x"].shape)
    records = [jax.tree.map(lambda x, i=i: x[i], columns) for i in range(runs.N)]
    return {
        "arrays": columns,
        "memmap": columns | {"x": mapped},
        "records": Records(columns),
        "records in one call": Batched(columns),
        "grain": grain.MapDataset.source(records),
    }


def test_every_kind_of_source_gives_the_same_rows(tmp_path):
    indices = np.array([5, 0, 47, -1, 5, -1])
    expected = rows(source_of(runs.data()), indices)
    assert np.array_equal(expected["x"][:3], runs.data()["x"][[5, 0, 47]])
    for name, given in sources(tmp_path).items():
        source = source_of(given)
        assert len(source) == runs.N, name
        found = rows(source, indices)
        for leaf in ("x", "y"):
            assert np.array_equal(found[leaf], expected[leaf]), name
            assert found[leaf].dtype == expected[leaf].dtype, name


def test_padding_is_zeros_and_no_record_is_read_for_it():
    for kind in (Records, Batched):
        given = kind(runs.data())
        source = source_of(given)
        given.read.clear()
        found = rows(source, np.array([[3, -1], [-1, -1]]))
        assert given.read == [3]
        assert found["x"].shape == (2, 2, runs.D)
        assert not found["x"][0, 1].any() and not found["x"][1].any()
    empty = rows(source_of(runs.data()), np.full(4, -1))
    assert not any(leaf.any() for leaf in jax.tree.leaves(empty))


def test_a_memmap_is_not_read_as_a_whole(tmp_path):
    mapped = sources(tmp_path)["memmap"]["x"]
    assert isinstance(ArraySource(mapped).columns, np.memmap)


def test_what_cannot_be_sampled_is_refused():
    with pytest.raises(FixArgumentsError, match="list of records or of columns"):
        source_of([np.zeros(3)])
    with pytest.raises(FixArgumentsError, match="A stream cannot be sampled"):
        source_of(iter([1]))
    with pytest.raises(FixArgumentsError, match="one row per record"):
        source_of({"x": np.zeros(3), "y": np.zeros(4)})
    with pytest.raises(FixArgumentsError, match="one row per record"):
        source_of(np.float32(1))
    for labels in ([0, 1], [[0], [1]]):
        with pytest.raises(FixArgumentsError, match=r"data\['y'\] is a list: .*np\.asarray"):
            source_of({"x": np.zeros(2), "y": labels})
    with pytest.raises(FixArgumentsError, match=r"data\[1\] is a list"):
        source_of((np.zeros(2), [0, 1]))
    for labels in (["cat", "dog"], [None, None]):
        with pytest.raises(FixArgumentsError, match=r"data\['y'\] has dtype .*np\.unique\(labels"):
            source_of({"x": np.zeros(2), "y": np.array(labels)})
    with pytest.raises(FixDataError, match="empty"):
        RecordSource(Records(runs.data(0)))


def test_records_that_differ_or_fail_are_named():
    def wider(number, record):
        return record | {"x": np.zeros(9, np.float32)} if number == 2 else record

    with pytest.raises(FixDataError, match=r"record 2 is .*float32\[9\].*but record 0 is"):
        source_of(Records(runs.data(), wider)).read(np.array([1, 2]))

    def fails(number, record):
        if number == 2:
            raise OSError("bad sector")
        return record

    with pytest.raises(FixDataError, match=r"record 2 could not be read \(OSError: bad sector\)"):
        source_of(Records(runs.data(), fails)).read(np.array([1, 2]))

    def told(number, record):
        raise FixDataError("a.png is damaged: replace it.")

    words = r"^record 2 could not be read: a.png is damaged: replace it. No step was"
    with pytest.raises(FixDataError, match=words):
        source_of(Records(runs.data(), lambda n, r: told(n, r) if n == 2 else r)).read(
            np.array([1, 2])
        )
    with pytest.raises(FixDataError, match="one of 2 records could not be read"):
        source_of(Batched(runs.data(), fails)).read(np.array([1, 2]))
    short = Batched(runs.data())
    short.__class__ = type("Short", (Batched,), {"__getitems__": lambda self, numbers: []})
    with pytest.raises(FixDataError, match="returned 0 records, but 1 were requested"):
        source_of(short).read(np.array([1]))


def test_the_length_is_that_of_the_plan():
    source = source_of(runs.data(40))
    check_length(source, None)
    check_length(source, 40)
    for expected in (39, 48):
        with pytest.raises(FixDataError, match=f"40 users, but the plan was made for {expected}"):
            check_length(source, expected, "user")


def test_a_fingerprint_tells_data_apart_and_nothing_without_its_key():
    one = data.fingerprint(source_of(runs.data()), b"key")
    assert one == data.fingerprint(source_of(Records(runs.data())), b"key")
    assert one != data.fingerprint(source_of(runs.data()), b"other key")
    changed = runs.data()
    changed["y"][-1] ^= 1
    assert one != data.fingerprint(source_of(changed), b"key")
    assert one != data.fingerprint(source_of(runs.data(40)), b"key")


def test_of_a_large_data_set_a_sample_is_read():
    given = Records(runs.data())
    source = source_of(given)
    given.read.clear()
    data.fingerprint(source, b"key", coverage=data.Coverage(max_bytes=10, sample_size=5))
    first = sorted(given.read)
    assert 1 <= len(first) <= 5
    given.read.clear()
    data.fingerprint(source, b"other", coverage=data.Coverage(max_bytes=10, sample_size=5))
    assert sorted(given.read) != first  # the secret key determines which records are read


def test_whose_examples_they_are_is_part_of_the_data():
    source = source_of(runs.data())
    one, other = (ExamplesByUser.of(np.arange(runs.N) // k) for k in (3, 4))
    found = [data.fingerprint(source, b"key", population) for population in (one, other, runs.N)]
    assert len(set(found)) == 3
    assert found[0] == data.fingerprint(source, b"key", ExamplesByUser.of(np.arange(runs.N) // 3))
    swapped = np.arange(runs.N) // 3
    swapped[[0, 10]] = swapped[[10, 0]]
    assert found[0] != data.fingerprint(source, b"key", ExamplesByUser.of(swapped))


def test_a_data_set_may_say_what_it_is():
    class Named(Records):
        fingerprint = "v1"

    given = Named(runs.data())
    source = source_of(given)
    given.read.clear()
    one = data.fingerprint(source, b"key")
    assert not given.read
    given.fingerprint = lambda: "v2"
    assert data.fingerprint(source, b"key") != one
    given.fingerprint = 3
    with pytest.raises(FixArgumentsError, match="fingerprint is a int"):
        data.fingerprint(source, b"key")
