"""Model files: every dtype comes back to the last bit, or is refused with what to do."""

import hashlib

import ml_dtypes
import numpy as np
import pytest

from bevel.errors import FixArgumentsError, RestoreCheckpointError
from bevel.shipping.model_files import EXTENDED, PLAIN, read_model, without_times, write_model

DTYPES = [*PLAIN.values(), *EXTENDED.values()]


def array(dtype, shape=(2, 3)):
    bits = np.random.default_rng(0).integers(0, 2, shape)
    return bits.astype(getattr(ml_dtypes, dtype, None) or dtype)


def same(a, b):
    return a.keys() == b.keys() and all(
        (a[k].dtype, a[k].shape, a[k].tobytes()) == (b[k].dtype, b[k].shape, b[k].tobytes())
        for k in a
    )


def test_every_dtype_and_shape_of_safetensors(tmp_path):
    params = {f"{d}/{i}": array(d, s) for d in DTYPES for i, s in enumerate([(2, 3), (), (0, 2)])}
    write_model(params, tmp_path, "safetensors")
    assert same(read_model(tmp_path, "safetensors"), params)


def test_orbax_keeps_names_and_bits(tmp_path):
    params = {
        "dense/0/w": array("float32"),
        "dense/0/b": array("bfloat16"),
        "s": array("int32", ()),
    }
    write_model(params, tmp_path, "orbax")
    assert same(read_model(tmp_path, "orbax"), params)


@pytest.mark.parametrize("model_format", ["safetensors", "orbax"])
def test_transposed_arrays_are_written_in_order(tmp_path, model_format):
    params = {"w": np.arange(12, dtype=np.float32).reshape(3, 4).T[::2]}
    write_model(params, tmp_path, model_format)
    assert same(read_model(tmp_path, model_format), params)


def test_the_same_arrays_give_the_same_bytes(tmp_path):
    digests = set()
    for order in (("a", "b", "c"), ("c", "a", "b")):
        folder = tmp_path / "".join(order)
        folder.mkdir()
        write_model({name: array("float32") for name in order}, folder, "safetensors")
        digests.add(hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest())
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("name", "dtype"), [("w", "int4"), ("w", "complex128"), ("__metadata__", "float32")]
)
def test_what_safetensors_cannot_hold_is_refused(tmp_path, name, dtype):
    with pytest.raises(FixArgumentsError, match=f"parameter '{name}' of dtype {dtype}.*orbax"):
        write_model({name: array(dtype)}, tmp_path, "safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("names", [("a/b", "a.b"), ("a", "a/b")])
def test_what_orbax_would_lose_is_refused(tmp_path, names):
    with pytest.raises(FixArgumentsError, match=r"to one file.*safetensors|two entries"):
        write_model({name: array("float32") for name in names}, tmp_path, "orbax")
    assert not list(tmp_path.iterdir())
    write_model({name: array("float32") for name in names}, tmp_path, "safetensors")


def test_damage_is_named(tmp_path):
    write_model({"w": array("float32")}, tmp_path, "safetensors")
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(RestoreCheckpointError, match=r"model.safetensors cannot be read"):
        read_model(tmp_path, "safetensors")


def test_all_files_get_one_time(tmp_path):
    write_model({"a/w": array("float32")}, tmp_path, "orbax")
    without_times(tmp_path, 1000)
    assert {path.stat().st_mtime for path in (tmp_path, *tmp_path.rglob("*"))} == {1000.0}
