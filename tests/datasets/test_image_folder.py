"""Images of any size and mode become arrays of one shape, when they are read."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bevel.datasets import DataSpec, DataTable
from bevel.datasets.image_folder import decoded, read_images
from bevel.errors import FixArgumentsError, FixDataError
from bevel.training.data import fingerprint


@pytest.fixture(name="folder")
def fixture_folder(tmp_path):
    images = [
        ("cat/0.png", Image.new("RGB", (6, 4), (10, 20, 30))),
        ("cat/1.png", Image.new("L", (3, 3), 60)),
        ("dog/2.png", Image.new("RGBA", (4, 4), (10, 20, 30, 40))),
        ("dog/3.png", Image.new("P", (5, 9), 7)),
    ]
    for name, image in images:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        image.save(tmp_path / name)
    return tmp_path


def table(folder, **changes):
    return DataTable(str(folder), **({"classes": ("cat", "dog"), "size": (4, 4, 3)} | changes))


def read(folder, **changes):
    return read_images(table(folder, **changes), Path(folder))


def test_every_image_has_the_declared_size(folder):
    for channels in (1, 3):
        spec, train, test = read(folder, size=(5, 4, channels))
        assert spec == DataSpec("image", (5, 4, channels), classes=2) and test is None
        batch = train.records.read(np.arange(4))
        assert batch["x"].shape == (4, 5, 4, channels) and batch["x"].dtype == np.float32
        assert 0 <= batch["x"].min() <= batch["x"].max() <= 1
        assert batch["y"].tolist() == [0, 0, 1, 1]


def test_values_are_those_of_the_pixels(folder):
    path = folder / "cat" / "pixels.png"
    pixels = np.random.default_rng(0).integers(0, 256, (4, 4, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(path)
    np.testing.assert_array_equal(decoded(path, (4, 4, 3)), np.float32(pixels) / np.float32(255))
    Image.fromarray(np.full((4, 4), 32768, np.uint16)).save(path)
    np.testing.assert_allclose(decoded(path, (2, 2, 1)), 0.5, atol=1e-4)


def test_images_are_turned_as_their_orientation_says(folder):
    path = folder / "cat" / "turned.jpg"
    image = Image.new("L", (8, 4), 0)
    image.paste(255, (0, 0, 4, 4))  # the left half is white
    exif = image.getexif()
    exif[0x0112] = 6  # turn by 90 degrees: left becomes top
    image.save(path, exif=exif, quality=100)
    found = decoded(path, (8, 4, 1))[..., 0]
    assert found[:3].min() > 0.9 and found[5:].max() < 0.1


def test_folders_for_training_and_testing(folder, tmp_path_factory):
    whole = tmp_path_factory.mktemp("split")
    for part in ("train", "test"):
        (whole / part).mkdir()
        for name in ("cat", "dog"):
            (whole / part / name).symlink_to(folder / name)
    _, train, test = read(whole)
    assert len(train.records) == len(test.records) == 4


def test_the_fingerprint_follows_the_pixels(folder):
    def digest():
        return fingerprint(read(folder)[1].records, b"key")

    before = digest()
    assert digest() == before
    Image.new("RGB", (6, 4), (99, 0, 0)).save(folder / "cat" / "0.png")
    assert digest() != before


@pytest.mark.parametrize("content", [b"", b"not an image", "cut"])
def test_a_damaged_image_is_named_when_it_is_read(folder, content):
    path = folder / "dog" / "2.png"
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3)).astype(np.uint8)
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[:500] if content == "cut" else content)
    _, train, _ = read(folder)
    assert train.records.read(np.array([0]))["x"].shape == (1, 4, 4, 3)
    with pytest.raises(FixDataError, match=r"dog/2.png cannot be decoded as an image"):
        train.records.read(np.array([0, 2]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": None}, r'write classes = \["cat", "dog"\]'),
        ({"classes": 2}, r'write classes = \["cat", "dog"\]'),
        ({"classes": ("cat", "dogs")}, "dog is not in the list of classes.*Did you mean 'dogs'"),
        ({"size": ()}, r"write size = \[height, width, channels\]"),
        ({"size": (4, 4)}, r"size is \[4, 4\]"),
        ({"size": (4, 4, 2)}, "1 channel"),
        ({"user": "who"}, "has no user ids"),
        ({"target": "number"}, "leave both out"),
    ],
)
def test_what_is_wrong_is_named(folder, changes, message):
    with pytest.raises((FixDataError, FixArgumentsError), match=message):
        read(folder, **changes)


def test_a_folder_without_images(tmp_path):
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    with pytest.raises(FixDataError, match="no images in folders named after classes"):
        read(tmp_path)
