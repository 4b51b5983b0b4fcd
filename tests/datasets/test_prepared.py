"""Records are converted one batch at a time, each by itself."""

import jax
import numpy as np
import pytest

from bevel.datasets import DataSpec, DataTable
from bevel.datasets.labels import Labels
from bevel.datasets.prepared import PreparedSource, checked_tokens, input_spec
from bevel.errors import FixArgumentsError, FixDataError
from bevel.training.data import ArraySource, DataSource, fingerprint


def test_records_are_what_the_description_says():
    x = np.arange(32, dtype=np.uint8).reshape(2, 4, 4)
    spec = DataSpec("image", (4, 4, 1), classes=2)
    source = PreparedSource(ArraySource({"x": x, "y": np.array([0, 1], np.int32)}), spec)
    assert isinstance(source, DataSource) and len(source) == 2
    batch = source.read(np.array([1]))
    types = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), batch)
    assert types == spec.record == source.record


def test_labels_are_encoded_at_every_read():
    records = ArraySource({"x": np.zeros((3, 2), np.float32), "y": np.array([5.0, np.nan, 7.0])})
    spec = DataSpec("table", (2,), classes=2)
    source = PreparedSource(records, spec, Labels(2, ("5", "7")))
    assert source.read(np.array([2, 0]))["y"].tolist() == [1, 0]
    with pytest.raises(FixDataError, match="record 1 has no label"):
        source.read(np.array([0, 1]))
    with pytest.raises(FixDataError, match="records 0 to 2: 1 labels are not in the list"):
        PreparedSource(records, spec, Labels(2, ("5", "8"))).read(np.array([0, 2]))


def test_a_token_outside_the_vocabulary_is_not_wrapped():
    spec = DataSpec("tokens", (2,), "int32", 2, 10)
    for token in (10, -1, 2**32):
        with pytest.raises(FixDataError, match=f"record 7 has token id {token}"):
            checked_tokens(np.array([[1, 2], [3, token]]), spec, np.array([4, 7]))


def test_the_fingerprint_follows_the_records():
    """A run resumes with the same data only, also where records are prepared when they are read."""
    spec = DataSpec("table", (2,), classes=2)

    def digest(x):
        records = ArraySource({"x": x, "y": np.zeros(len(x), np.int32)})
        return fingerprint(PreparedSource(records, spec), b"key")

    x = np.zeros((5, 2), np.uint8)
    changed = x.copy()
    changed[3, 1] = 1
    assert digest(x) == digest(x.copy()) != digest(changed)


@pytest.mark.parametrize(
    ("shape", "dtype", "options", "spec"),
    [
        ((8, 8), "uint8", {}, DataSpec("image", (8, 8, 1))),
        ((8, 8, 3), "float32", {}, DataSpec("image", (8, 8, 3))),
        ((8, 8), "float32", {"kind": "table"}, DataSpec("table", (8, 8))),
        ((), "float64", {}, DataSpec("table", (1,))),
        ((5,), "int64", {"kind": "table"}, DataSpec("table", (5,))),
        ((2, 3, 4, 5), "float32", {}, DataSpec("table", (2, 3, 4, 5))),
        (
            (5,),
            "uint8",
            {"kind": "tokens", "vocabulary": 9},
            DataSpec("tokens", (5,), "int32", vocabulary=9),
        ),
    ],
)
def test_the_kind_follows_from_the_shape(shape, dtype, options, spec):
    assert input_spec(DataTable(**options), shape, dtype, "x") == spec


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((5,), {}, "write vocabulary = N"),
        ((5,), {"vocabulary": 4, "padding": 4}, "padding is 4: use an id from 0 to 3"),
        ((1,), {"vocabulary": 4, "target": "next token"}, "there is no next token"),
        ((5, 2), {"vocabulary": 4}, "one row of token ids per record"),
    ],
)
def test_tokens_that_are_not_declared(shape, options, message):
    with pytest.raises((FixDataError, FixArgumentsError), match=message):
        input_spec(DataTable(kind="tokens", **options), shape, "int32", "x")
    with pytest.raises(FixDataError, match="images have 2 or 3 axes"):
        input_spec(DataTable(kind="image"), (4,), "float32", "x")
