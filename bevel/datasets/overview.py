"""What `bevel data` understands of a source. It looks at the records, so it is not private."""

import collections
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from bevel.checks import in_one_line
from bevel.datasets.array_files import arrays_in
from bevel.datasets.column_scan import ColumnOverview, ColumnScan
from bevel.datasets.image_folder import TEST_FOLDERS, class_folders, image_files
from bevel.datasets.labels import as_texts
from bevel.datasets.load import source_files
from bevel.datasets.options import DataTable
from bevel.datasets.proposal import DataProposal, table_proposal
from bevel.datasets.records import ARRAY_RECORD, record_sets
from bevel.datasets.table_file import is_parquet, open_table
from bevel.errors import FixDataError
from bevel.training.data import DataSource

CHUNK = 4096
LABELS_READ = 1000  # of sources whose records have to be decoded
LARGEST_SIDE = 64


@dataclasses.dataclass(frozen=True)
class Overview:
    """What was found in a source, and the [data] table that follows from it.

    Attributes:
      source, format: where it is, and what it is.
      records: the number of training records.
      columns: the columns of a table, or None for other formats.
      details: rows (name, what was found) for arrays, images and records.
      classes: how many records each class has.
      warnings: what should be looked at before training.
    """

    source: str
    format: str
    records: int
    proposal: DataProposal
    columns: list[ColumnOverview] | None = None
    details: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    classes: dict[str, int] = dataclasses.field(default_factory=dict)
    warnings: list[str] = dataclasses.field(default_factory=list)


def overview_of(table: DataTable, label: str | None = None, user: str | None = None) -> Overview:
    """Looks at the source of a config, of which only the keys that say how to read it matter."""
    if ".py:" in table.source:
        return _records(table, "Python function")
    if table.source == "digits":
        return Overview("digits", "scikit-learn", 1437, DataProposal({"source": "digits"}))
    files = source_files(table.source)
    first = files[0]
    if first.suffix in ARRAY_RECORD:
        return _records(table, "ArrayRecord")
    if first.suffix in (".npz", ".npy") or (first.is_dir() and any(first.glob("*.npy"))):
        return _arrays(table, first, label, user)
    if first.is_dir():
        if any(path.suffix in ARRAY_RECORD for path in first.iterdir()):
            return _records(table, "ArrayRecord")
        return _images(table, first)
    return _table(table, first, label, user)


def _table(table: DataTable, path: Path, label: str | None, user: str | None) -> Overview:
    file = open_table(path, table.delimiter, table.header)
    used = [name for name in file.types if name not in file.repeated]
    warnings = [f"several columns are called {name!r}: rename them." for name in file.repeated]
    scans = {name: ColumnScan(name, file.types[name]) for name in used}
    for batch in file.batches(used):
        for name, scan in scans.items():
            scan.add(batch.column(name))
    columns = [scan.overview() for scan in scans.values()]
    if not table.header and all(_is_number(name) for name in used):
        warnings.append("the first line looks like a record: name the columns with --header a,b,c")
    data: dict[str, Any] = {"source": table.source, "test_fraction": 0.2}
    if file.delimiter != "," and not path.name.endswith((".tsv", ".tsv.gz")):
        data["delimiter"] = file.delimiter
    if table.header:
        data["header"] = list(table.header)
    proposal = table_proposal(data, columns, label, user)
    target = next(column for column in columns if column.name == proposal.data["y"])
    for column in columns:
        if column.looks_like == "user id":
            warnings.append(
                f"{column.name} looks like a user id: {column.distinct:,} values in "
                f"{column.records:,} records, up to {column.most_repeats:,} for one."
            )
        elif column.looks_like == "identifier":
            warnings.append(f"{column.name} is different in every record: leave it out.")
    classes = target.counts if "classes" in proposal.data else {}
    return Overview(
        table.source,
        "Parquet" if is_parquet(path) else "CSV",
        columns[0].records,
        proposal,
        columns,
        classes=classes,
        warnings=warnings,
    )


def _arrays(table: DataTable, path: Path, label: str | None, user: str | None) -> Overview:
    arrays = arrays_in(path)
    if not arrays:
        raise FixDataError(f"{path} holds no arrays.")
    x_name = next((n for n in ("x_train", "x") if n in arrays), max(arrays, key=_size_of(arrays)))
    x = arrays[x_name]
    per_record = [n for n, a in arrays.items() if n != x_name and a.shape == x.shape[:1]]
    likely = [n for n in ("y_train", "y", "labels", "label", "target") if n in per_record]
    candidates = [*likely, *(name for name in per_record if name != user)]
    y_name = label or next(iter(candidates), None)
    data: dict[str, Any] = {"source": table.source, "x": x_name}
    details = [(name, _described(array)) for name, array in arrays.items()]
    warnings = [
        f"{name} has {count:,} values that are NaN or infinite: such records are not used."
        for name, array in arrays.items()
        if (count := _non_finite(array))
    ]
    is_tokens = x.dtype.kind in "iu" and x.dtype != np.uint8 and x.ndim == 2
    comments = {}
    if is_tokens:
        data |= {"kind": "tokens", "vocabulary": int(x.max()) + 1}
        comments["vocabulary"] = (
            "One more than the largest id that was found. Take it from the tokenizer."
        )
    classes: dict[str, int] = {}
    if y_name is not None:
        if y_name not in arrays:
            raise FixDataError(f"there is no array {y_name!r}: {', '.join(arrays)}.")
        column = _scanned(y_name, np.asarray(arrays[y_name]))
        found = table_proposal({}, [column], y_name)
        data |= found.data
        classes = column.counts if "classes" in found.data else {}
    elif is_tokens:
        data["target"] = "next token"
    if user is not None:
        data["user"] = user
    if "x_test" not in arrays:
        data["test_fraction"] = 0.2
    kind = "folder of .npy files" if path.is_dir() else path.suffix
    return Overview(
        table.source,
        kind,
        len(x),
        DataProposal(data, comments=comments),
        details=details,
        classes=classes,
        warnings=warnings,
    )


def _images(table: DataTable, folder: Path) -> Overview:
    from PIL import Image

    root = folder / "train" if (folder / "train").is_dir() else folder
    classes = {path.name: len(image_files(path)) for path in class_folders(root)}
    if not classes:
        raise FixDataError(
            f"{folder} has no images in folders named after classes, such as "
            f"{folder.name}/cat/1.png."
        )
    sizes, modes, damaged = collections.Counter[Any](), collections.Counter[str](), []
    for path in (file for name in classes for file in image_files(root / name)):
        try:
            with Image.open(path) as image:
                sizes[image.height, image.width] += 1
                modes[image.mode] += 1
                image.verify()
        except Exception as error:  # Pillow raises errors of many kinds for damaged files
            damaged.append(f"{path} cannot be read: {in_one_line(error, 60)}")
    (height, width), _ = (sizes or collections.Counter({(32, 32): 1})).most_common(1)[0]
    channels = 1 if all(mode in ("1", "L", "LA") or mode[0] == "I" for mode in modes) else 3
    scale = min(1.0, LARGEST_SIDE / max(height, width))
    size = [max(1, round(height * scale)), max(1, round(width * scale)), channels]
    data: dict[str, Any] = {"source": table.source, "classes": list(classes), "size": size}
    comments = {"size": "Height, width and channels. All images are resized to it."}
    if root == folder or not any((folder / name).is_dir() for name in TEST_FOLDERS):
        data["test_fraction"] = 0.2
    shown = ", ".join(f"{h} x {w} ({n:,})" for (h, w), n in sizes.most_common(4))
    details = [
        ("height x width", shown + (", ..." if len(sizes) > 4 else "")),
        ("colours", ", ".join(f"{mode} ({n:,})" for mode, n in modes.most_common())),
    ]
    return Overview(
        table.source,
        "folder of images",
        sum(classes.values()),
        DataProposal(data, comments=comments),
        details=details,
        classes=classes,
        warnings=[*damaged[:10], *([f"... and {len(damaged) - 10} more"] if damaged[10:] else [])],
    )


def _records(table: DataTable, kind: str) -> Overview:
    sets = record_sets(table)
    source: DataSource = sets[0]
    data: dict[str, Any] = {"source": table.source}
    if table.decode is not None:
        data["decode"] = table.decode
    details = [
        (name, f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}")
        for name, leaf in source.record.items()
    ]
    read = source.read(np.arange(min(len(source), LABELS_READ)))
    classes: dict[str, int] = {}
    if "y" in read and np.ndim(read["y"]) == 1:
        column = _scanned("y", np.asarray(read["y"]))
        found = table_proposal({}, [column], "y").data
        data |= {key: value for key, value in found.items() if key != "y"}
        classes = column.counts if "classes" in data else {}
    if len(sets) == 1:
        data["test_fraction"] = 0.2
    warnings = []
    if len(source) > LABELS_READ:
        warnings.append(f"only the labels of the first {LABELS_READ:,} records were read.")
    proposal = DataProposal(data)
    return Overview(
        table.source,
        kind,
        len(source),
        proposal,
        details=details,
        classes=classes,
        warnings=warnings,
    )


def _scanned(name: str, values: np.ndarray) -> ColumnOverview:
    import pyarrow as pa

    plain = values if values.dtype.kind in "iufb" else as_texts(values)
    if plain.dtype == np.float16:
        plain = plain.astype(np.float32)
    array = pa.array(plain)
    scan = ColumnScan(name, array.type)
    scan.add(array)
    return scan.overview()


def _described(array: np.ndarray) -> str:
    text = f"{array.dtype.name}{list(array.shape)}"
    if array.dtype.kind not in "biuf" or not array.size:
        return text
    return f"{text}, from {array.min():g} to {array.max():g}"


def _non_finite(array: np.ndarray) -> int:
    if array.dtype.kind != "f" or array.ndim == 0:
        return 0
    chunks = (array[start : start + CHUNK] for start in range(0, len(array), CHUNK))
    return sum(int((~np.isfinite(chunk)).sum()) for chunk in chunks)


def _size_of(arrays: dict[str, np.ndarray]) -> Any:
    return lambda name: arrays[name].size


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
