"""Arrays are mapped from their files, and a pickle is never loaded."""

import pickle

import numpy as np
import pytest

from bevel.datasets.array_files import arrays_in
from bevel.errors import FixDataError

ARRAYS = {
    "x": np.arange(12, dtype=np.float32).reshape(4, 3),
    "columns": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "empty": np.zeros((0, 3)),
    "one": np.float64(2.5),
    "text": np.array(["a", "bcd"]),
}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_archive_is_read_as_numpy_reads_it(tmp_path, save):
    path = tmp_path / "data.npz"
    save(path, **ARRAYS)
    found = arrays_in(path)
    assert list(found) == list(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == np.asarray(array).dtype


def test_arrays_of_an_archive_are_not_read_into_memory(tmp_path):
    np.savez(tmp_path / "data.npz", **ARRAYS)
    np.savez_compressed(tmp_path / "small.npz", **ARRAYS)
    assert isinstance(arrays_in(tmp_path / "data.npz")["x"], np.memmap)
    assert not isinstance(arrays_in(tmp_path / "small.npz")["x"], np.memmap)


def test_a_folder_of_arrays_is_mapped(tmp_path):
    np.save(tmp_path / "x_train.npy", ARRAYS["x"])
    np.save(tmp_path / "y_train.npy", np.arange(4))
    found = arrays_in(tmp_path)
    assert list(found) == ["x_train", "y_train"]
    assert isinstance(found["x_train"], np.memmap)
    np.testing.assert_array_equal(arrays_in(tmp_path / "x_train.npy")["x_train"], ARRAYS["x"])


class Trap:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_objects_are_refused_without_loading_them(tmp_path, save):
    objects = np.empty(1, object)
    objects[0] = Trap(tmp_path / "trapped")
    save(tmp_path / "data.npz", x=objects)
    with pytest.raises(FixDataError) as caught:
        arrays_in(tmp_path / "data.npz")
    assert "array 'x' holds Python objects" in str(caught.value)
    assert "unsafe" not in str(caught.value)
    np.save(tmp_path / "x.npy", objects)
    with pytest.raises(FixDataError, match="a pickle can run any code"):
        arrays_in(tmp_path / "x.npy")
    assert not (tmp_path / "trapped").exists()


@pytest.mark.parametrize("content", [b"", b"no archive", pickle.dumps([1])])
def test_a_file_that_is_no_archive_is_named(tmp_path, content):
    (tmp_path / "data.npz").write_bytes(content)
    with pytest.raises(FixDataError, match=r"data.npz cannot be read as an .npz file"):
        arrays_in(tmp_path / "data.npz")
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(FixDataError, match=r"x.npy is not an .npy file"):
        arrays_in(tmp_path / "x.npy")


def test_a_file_that_was_cut_off_is_named(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.arange(1000))
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(FixDataError, match=r"x.npy is not an .npy file"):
        arrays_in(path)
