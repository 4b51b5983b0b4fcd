"""Every config of docs/data.md loads its data, and those with classes train."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from array_record.python.array_record_module import ArrayRecordWriter
from PIL import Image

from bevel.accounting.ledger import Ledger
from bevel.cli import main
from bevel.cli.config import read_config
from bevel.datasets import data_set

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "data.md").read_text()
BLOCKS = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
NAMES = [re.search(r'source = "(.*?)"', block)[1] for block in BLOCKS]
OTHERS = """
noise_multiplier = 1.0
delta = 1e-3
batch_size = 6
steps = 2
[model]
kind = "linear"
[mesh]
axes = "data=8"
[run]
folder = "run"
"""


@pytest.fixture(name="files", autouse=True)
def fixture_files(tmp_path, monkeypatch):
    """Small files with the names that the page uses, in the working directory."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    lines = [
        f"{20 + k % 50},{'' if k % 7 == 0 else k % 60},{['Private', 'State-gov', 'Own'][k % 3]},"
        f"{2010 + k % 12}-03-01,{'>50K' if k % 2 else '<=50K'}"
        for k in range(60)
    ]
    header = "age,hours per week,workclass,joined,income"
    Path("adult.csv").write_text("\n".join([header, *lines]))
    images, labels = rng.integers(0, 255, (40, 4, 4), np.uint8), np.arange(40) % 10
    np.savez("digits.npz", images=images, labels=labels, test_images=images, test_labels=labels)
    for k in range(30):
        path = Path("photos", ["cat", "dog"][k % 2], f"{k}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 6), (k, 2 * k, 3 * k)).save(path)
    Path("reviews.csv").write_text(
        "\n".join(["review,stars", *(f"a review of {k} words,{k % 3 + 1}" for k in range(40))])
    )
    tokens = rng.integers(0, 1000, (40, 6))
    np.savez("tokens.npz", x=tokens, y=np.arange(40) % 2)
    np.save("text.npy", tokens)
    Path("records").mkdir()
    writer = ArrayRecordWriter("records/0.array_record", "group_size:1")
    for k in range(40):
        writer.write(np.float32([k / 40, k % 2, k % 2]).tobytes())
    writer.close()
    Path("decode.py").write_text(
        "import numpy as np\n"
        "def decode(record):\n"
        "    values = np.frombuffer(record, np.float32)\n"
        "    return {'x': values[:2], 'y': np.int32(values[2])}\n"
    )
    Path("my_data.py").write_text(
        "import numpy as np\n"
        "def records():\n"
        "    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2\n"
        "    return {'x': x[:30], 'y': y[:30]}, {'x': x[30:], 'y': y[30:]}\n"
    )
    visits = {
        "patient_id": [f"p{k % 15}" for k in range(60)],
        "age": np.arange(60) % 90,
        "outcome": np.arange(60) % 2,
    }
    pq.write_table(pa.table(visits), "visits.parquet")


def config(block):
    text = block if "[plan]" in block else f"{block}\n[plan]"
    Path("config.toml").write_text(text.rstrip() + OTHERS)
    return read_config("config.toml")


@pytest.mark.parametrize("block", BLOCKS, ids=NAMES)
def test_the_data_of_the_page_loads(block):
    data = data_set(config(block).data)
    batch = data.train.read(np.arange(4))
    for name, one in data.spec.record.items():
        assert batch[name].shape == (4, *one.shape) and batch[name].dtype == one.dtype
    assert len(data.train) > len(data.test) or "x_test" in block


TRAINABLE = [
    pytest.param(block, id=name, marks=pytest.mark.fast if "csv" in name else ())
    for name, block in zip(NAMES, BLOCKS, strict=True)
    if "tokens" not in block and "number" not in block
]


@pytest.mark.parametrize("block", TRAINABLE)
def test_a_run_of_the_page_trains_and_resumes(block, capsys, reports):
    users = config(block).data.user is not None
    for _ in range(2):
        assert main(["train", "config.toml"]) == 0, capsys.readouterr().err
    terms = Ledger.read("run/released/ledger.jsonl").terms
    assert terms.unit == ("user" if users else "example")
