"""Labels and ids are never changed without a word, and masks are never ignored."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bevel
from bevel.errors import BevelError, FixArgumentsError, FixDataError
from bevel.precision import overflowing
from bevel.training.data import RecordSource, rows, source_of

FEW = np.arange(3)
TOO_LARGE = [
    np.array([0, 1, 2**31]),
    np.array([0, -(2**31) - 1, 2]),
    np.array([0, 1, 2**63], np.uint64),
    np.array([2**32, 0, 0], np.uint64),
]
NO_NUMBERS = [
    np.array(["a", "b", "c"]),
    np.array([1, None, 2], object),
    np.array(["2020-01-01"] * 3, "datetime64[D]"),
    np.array([1, 2, 3], "timedelta64[s]"),
    np.zeros(3, [("a", int), ("b", float)]),
]
MASKED = [
    np.ma.masked_array([0, 1, 2], [False, True, False]),
    np.ma.masked_array([0, 1, 2], False),  # whoever masks nothing may mask tomorrow
    np.ma.masked_array(np.zeros((3, 2)), np.eye(3, 2)),
]


@pytest.mark.parametrize("labels", TOO_LARGE)
def test_integers_that_jax_would_wrap_are_refused(labels):
    """Without 64 bits, JAX makes another label of them."""
    for data in ({"y": labels}, Records(labels)):
        with pytest.raises(FixDataError, match=r"does not fit into 32 bits: JAX would silently"):
            rows(source_of(data), FEW)
    grad = bevel.clipped_grad(lambda w, y: w * y.sum(), l2_clip_norm=1.0)
    with pytest.raises(FixArgumentsError, match=r"does not fit into 32 bits"):
        grad(jnp.float32(1), labels)


@pytest.mark.parametrize("labels", TOO_LARGE[:2])
def test_integers_that_fit_are_kept(labels):
    with jax.enable_x64(True):
        assert rows(source_of({"y": labels}), FEW)["y"].tolist() == labels.tolist()
    small = {"y": np.clip(labels, -(2**31), 2**31 - 1)}
    assert rows(source_of(small), FEW)["y"].tolist() == small["y"].tolist()
    assert overflowing(np.zeros(0, np.int64)) is None


class Records:
    """A source of single records."""

    def __init__(self, values):
        self.values = values

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        return {"y": self.values[index : index + 1]}


@pytest.mark.parametrize("column", NO_NUMBERS)
def test_columns_that_are_no_numbers_are_refused(column):
    for make in (lambda: source_of({"y": column}), lambda: RecordSource(Records(column))):
        with pytest.raises(FixArgumentsError, match=r"has dtype .*, but JAX computes with numbers"):
            make()
    grad = bevel.clipped_grad(lambda w, y: w * y.sum(), l2_clip_norm=1.0)
    with pytest.raises(BevelError):
        grad(jnp.float32(1), column)


@pytest.mark.parametrize("column", MASKED)
def test_masks_are_refused(column):
    """With what to do: bevel cannot know which value is right for a masked entry."""
    grad = bevel.clipped_grad(lambda w, y: w * y.sum(), l2_clip_norm=1.0)
    for use in (
        lambda: source_of({"y": column}),
        lambda: source_of(column),
        lambda: RecordSource(Records(column)),
        lambda: grad(jnp.float32(1), column),
    ):
        with pytest.raises(BevelError, match=r"masked array.*\n*.*array\.filled\(value\)"):
            use()


def test_a_masked_padding_mask_is_refused():
    grad = bevel.clipped_grad(lambda w, y: w * y.sum(), l2_clip_norm=1.0)
    mask = np.ma.masked_array([False, False], [True, False])
    with pytest.raises(FixArgumentsError, match="is_padding_example is a masked array"):
        grad(jnp.float32(1), np.ones(2, np.float32), is_padding_example=mask)


def test_masked_and_missing_ids_are_refused():
    from bevel.batch_selection import ExamplesByUser

    for ids in (MASKED[0], NO_NUMBERS[1], np.array([1.0, np.nan])):
        with pytest.raises(FixArgumentsError, match="user_ids"):
            ExamplesByUser.of(ids)


def test_views_and_memory_maps_are_read_as_they_are(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.arange(6, dtype=np.int32).reshape(3, 2))
    mapped = np.load(path, mmap_mode="r")
    view = np.broadcast_to(np.float32(1), (3, 2))
    read = rows(source_of({"a": mapped, "b": view}), FEW)
    assert read["a"].tolist() == mapped.tolist() and read["b"].tolist() == view.tolist()


def test_bfloat16_columns_are_numbers():
    assert source_of({"x": np.zeros((3, 2), jnp.bfloat16)}).record["x"].dtype == jnp.bfloat16


@pytest.mark.parametrize("column", [np.array(3), np.float32(1), 3])
def test_columns_without_rows_are_refused(column):
    with pytest.raises(FixArgumentsError):
        source_of({"y": column})
