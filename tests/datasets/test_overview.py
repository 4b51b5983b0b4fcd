"""An overview of every format, whose proposal loads the data that was looked at."""

import dataclasses
import tomllib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from bevel.datasets import DataTable, data_set, declared
from bevel.datasets.overview import overview_of
from bevel.errors import FixDataError


def proposed(overview):
    """The table that a config would have if the proposal was pasted into it."""
    values = tomllib.loads(overview.proposal.toml())["data"]
    columns = {name: declared(value) for name, value in values.pop("columns", {}).items()}
    lists = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    return DataTable(**lists, columns=columns)


def csv(path):
    lines = [f"{k},{20 + k},{'abc'[k % 3]},u{k % 8},{'yes' if k % 2 else 'no'}" for k in range(60)]
    path.write_text("\n".join(["number,age,job,user_id,label", *lines]) + "\n")
    return DataTable(str(path))


def parquet(path):
    ages, jobs = np.arange(60.0) / 7, ["abc"[k % 3] for k in range(60)]
    pq.write_table(pa.table({"age": ages, "job": jobs, "label": np.arange(60) % 3}), path)
    return DataTable(str(path))


def npz(path):
    rng = np.random.default_rng(0)
    np.savez(path, images=rng.integers(0, 255, (60, 4, 4), np.uint8), labels=np.arange(60) % 5)
    return DataTable(str(path))


def tokens(path):
    np.savez(path, x=np.arange(240).reshape(60, 4) % 50, y=np.arange(60) % 2)
    return DataTable(str(path))


def language(path):
    np.save(path, np.arange(240, dtype=np.int32).reshape(60, 4) % 50)
    return DataTable(str(path))


def images(path):
    for k in range(30):
        file = path / ("cat" if k % 2 else "dog") / f"{k}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (6, 5), k).save(file)
    return DataTable(str(path))


def function(path):
    path.write_text(
        "import numpy as np\n"
        "def records():\n"
        "    return {'x': np.arange(60.0).reshape(30, 2), 'y': np.arange(30) % 4}\n"
    )
    return DataTable(f"{path}:records")


FORMATS = {
    "data.csv": csv,
    "data.parquet": parquet,
    "data.npz": npz,
    "tokens.npz": tokens,
    "text.npy": language,
    "images": images,
    "overview_records.py": function,
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_proposal_loads_the_data(tmp_path, name):
    table = FORMATS[name](tmp_path / name)
    overview = overview_of(table)
    found = proposed(overview)
    data = data_set(dataclasses.replace(found, test_fraction=0.3))
    assert len(data.train) + len(data.test) == overview.records
    if data.spec.classes is not None:
        assert data.spec.classes == len(overview.classes)
        assert sum(overview.classes.values()) == overview.records


def test_ids_are_told(tmp_path):
    overview = overview_of(csv(tmp_path / "data.csv"))
    assert overview.proposal.data["user"] == "user_id"
    assert "number" not in overview.proposal.columns
    told = " ".join(overview.warnings)
    assert "user_id looks like a user id: 8 values in 60 records, up to 8 for one" in told
    assert "number is different in every record" in told


def test_what_should_be_looked_at_is_told(tmp_path):
    path = tmp_path / "data.npz"
    x = np.zeros((30, 2))
    x[3] = np.nan
    np.savez(path, x=x, y=np.arange(30) % 2)
    assert (
        "x has 2 values that are NaN or infinite" in overview_of(DataTable(str(path))).warnings[0]
    )
    images(tmp_path / "pictures")
    (tmp_path / "pictures" / "cat" / "1.png").write_bytes(b"damaged")
    assert "cat/1.png cannot be read" in overview_of(DataTable(f"{tmp_path}/pictures")).warnings[0]
    (tmp_path / "bare.csv").write_text("1,2,0\n" + "3,4,1\n5,6,0\n" * 9)
    assert "looks like a record" in overview_of(DataTable(f"{tmp_path}/bare.csv")).warnings[0]


def test_nothing_to_look_at(tmp_path):
    with pytest.raises(FixDataError, match="no images in folders named after classes"):
        overview_of(DataTable(str(tmp_path)))
    np.savez(tmp_path / "empty.npz")
    with pytest.raises(FixDataError, match="holds no arrays"):
        overview_of(DataTable(str(tmp_path / "empty.npz")))
    assert overview_of(DataTable()).proposal.data == {"source": "digits"}
