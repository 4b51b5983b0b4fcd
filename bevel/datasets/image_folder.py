"""Reads folders of images by class: `cat/1.png`, or `train/cat/1.png` and `test/cat/2.png`.

Images are decoded when a batch needs them, in threads, so that memory holds one batch.
"""

from pathlib import Path
from typing import Any

import numpy as np

from bevel.checks import in_one_line, nearest
from bevel.datasets.data_set import DataSpec
from bevel.datasets.options import DataTable
from bevel.datasets.prepared import PreparedSource
from bevel.datasets.split import Part
from bevel.errors import FixArgumentsError, FixDataError
from bevel.training.data import RecordSource

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
TEST_FOLDERS = ("test", "val", "validation")


class _Images:
    """Decoded images with their class numbers, one at a time."""

    def __init__(self, files: list[tuple[Path, int]], size: tuple[int, ...]) -> None:
        self.files, self.size = files, size

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        path, label = self.files[index]
        return {"x": decoded(path, self.size), "y": np.asarray(label, np.int32)}


def decoded(path: Path, size: tuple[int, ...]) -> np.ndarray:
    """An image as float32 from 0 to 1, of shape `size` (height, width, channels).

    It is turned as its EXIF orientation says and resized with Pillow's bilinear filter.
    Transparency is dropped, and colour becomes grey for one channel.
    """
    from PIL import Image, ImageOps

    height, width, channels = size
    try:
        with Image.open(path) as image:
            turned = ImageOps.exif_transpose(image)
            if turned.mode.startswith("I"):  # 16 bits per pixel
                turned = turned.convert("I").convert("F").point(lambda v: v * (255 / 65535))
            elif turned.mode != "F":
                turned = turned.convert("L" if channels == 1 else "RGB")
            resized = turned.resize((width, height), Image.Resampling.BILINEAR)
            pixels = np.asarray(resized, np.float32) / np.float32(255)
    except Exception as error:  # Pillow raises errors of many kinds for damaged files
        raise FixDataError(
            f"{path} cannot be decoded as an image ({in_one_line(error, 80)}): replace the file, "
            "or remove it before the run begins."
        ) from None
    if pixels.ndim == 2:
        pixels = np.repeat(pixels[..., None], channels, axis=2)
    return pixels


def read_images(table: DataTable, folder: Path) -> tuple[DataSpec, Part, Part | None]:
    """The training images of a folder, and the test images if it has a folder of them."""
    spec = _spec(table, folder)
    root = folder / "train" if (folder / "train").is_dir() else folder
    train = _part(table, root, spec)
    names = [name for name in TEST_FOLDERS if (folder / name).is_dir() and root != folder]
    test = _part(table, folder / names[0], spec) if names and table.test is None else None
    return spec, train, test


def class_folders(folder: Path) -> list[Path]:
    """The folders directly under `folder` that contain images, at any depth."""
    inner = sorted(path for path in folder.iterdir() if path.is_dir())
    return [path for path in inner if not path.name.startswith(".") and image_files(path)]


def image_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)


def _spec(table: DataTable, folder: Path) -> DataSpec:
    size: Any = table.size
    if len(size) != 3 or size[2] not in (1, 3) or min(size) < 1:
        raise FixDataError(
            f"[data] size is {list(size)}: write size = [height, width, channels] with 1 channel "
            f"(grey) or 3 (colour), as in size = [32, 32, 3]. `bevel data {folder}` proposes one."
        )
    if not isinstance(table.classes, tuple):
        root = folder / "train" if (folder / "train").is_dir() else folder
        names = ", ".join(f'"{path.name}"' for path in class_folders(root))
        raise FixDataError(
            "[data] does not list the classes, which become public with the model. The folders are "
            f"named: write classes = [{in_one_line(names)}]."
        )
    if table.target != "class" or table.kind not in ("auto", "image"):
        raise FixArgumentsError(
            f"[data] source is a folder of images, which have classes, but kind is {table.kind!r} "
            f"and target is {table.target!r}: leave both out."
        )
    if table.user is not None:
        raise FixArgumentsError(
            "[data] user: a folder of images has no user ids. Write a function that returns the "
            "records, and set source = 'file.py:function'."
        )
    return DataSpec("image", tuple(size), classes=len(table.classes))


def _part(table: DataTable, folder: Path, spec: DataSpec) -> Part:
    assert isinstance(table.classes, tuple)
    files = []
    for inner in class_folders(folder):
        if inner.name not in table.classes:
            raise FixDataError(
                f"{inner} is not in the list of classes of [data]"
                f"{nearest(inner.name, table.classes)} Add it, or move the folder."
            )
        number = table.classes.index(inner.name)
        files += [(path, number) for path in image_files(inner)]
    if not files:
        raise FixDataError(
            f"{folder} has no images in folders named after classes, such as "
            f"{folder.name}/{table.classes[0]}/1.png."
        )
    names = [path.relative_to(folder).as_posix() for path, _ in files]
    records = RecordSource(_Images(files, table.size))
    return Part(PreparedSource(records, spec), names=names)
