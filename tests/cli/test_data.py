"""`bevel data` shows a data set on 80 columns, and its proposal trains."""

import json

import pytest

from bevel.cli import main
from bevel.cli.config import read_config

PLAN = """
[plan]
noise_multiplier = 1.0
delta = 1e-3
batch_size = 8
steps = 2
[model]
kind = "linear"
[mesh]
axes = "data=8"
cpu_devices = 8
"""


@pytest.fixture(name="csv")
def fixture_csv(tmp_path):
    path = tmp_path / "census.csv"
    lines = [
        f"{17 + k % 74},{['Private', 'State'][k % 2]},{'' if k == 5 else k % 60},p{k % 20},"
        f"{'>50K' if k % 3 else '<=50K'}"
        for k in range(120)
    ]
    path.write_text("\n".join(["age,work,hours per week,patient_id,income", *lines]) + "\n")
    return path


def test_everything_is_shown_on_80_columns(csv, capsys):
    assert main(["data", str(csv)]) == 0
    shown = capsys.readouterr().out
    words = " ".join(shown.split())  # a long path moves the line breaks
    assert "120 records (CSV)" in words and "NOT PRIVATE" in words
    assert "patient_id looks like a user id: 20 values" in words
    assert "classes of income: <=50K: 40, >50K: 80" in words
    assert '"hours per week" = [0, 60, "missing"]' in shown
    assert "becomes public with the model" in words
    source = f'source = "{csv}"'
    lines = [line for line in shown.splitlines() if line != source and str(csv) not in line]
    assert max(len(line.rstrip()) for line in lines) <= 80


def test_json_has_all_of_it(csv, capsys):
    assert main(["data", str(csv), "--json"]) == 0
    read = json.loads(capsys.readouterr().out)
    assert read["not_private"] is True and read["records"] == 120
    by_name = {column["name"]: column for column in read["columns"]}
    assert by_name["patient_id"]["looks_like"] == "user id"
    assert by_name["hours per week"]["missing"] == 1
    assert read["toml"].startswith("[data]")


def test_what_is_written_is_a_config_that_trains(csv, tmp_path, capsys, reports):
    config = tmp_path / "config.toml"
    config.write_text(PLAN)
    assert main(["data", str(csv), "--write", str(config)]) == 0
    read = read_config(config)
    assert read.data.user == "patient_id" and read.plan.batch_size == 8
    assert main(["train", str(config), f"--run.folder={tmp_path / 'run'}"]) == 0
    capsys.readouterr()
    assert main(["data", str(csv), "--write", str(config)]) == 1
    assert "already has [data]: remove it first" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.csv", None, "there is no file"),
        ("data.xlsx", b"PK", "save the sheet as CSV or Parquet"),
        ("empty.csv", b"", "is empty"),
        ("data.npz", b"text", "cannot be read as an .npz file"),
    ],
)
def test_mistakes_are_told_in_one_message(tmp_path, capsys, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert main(["data", str(tmp_path / name)]) == 1
    told = capsys.readouterr().err
    assert message in told and len(told.splitlines()) <= 4
    assert "Traceback" not in told


def test_a_config_that_cannot_be_read_is_told_and_kept(csv, tmp_path, capsys):
    path = tmp_path / "old.toml"
    for content in (b"x = " + b"9" * 5000, b"x = " + b"[" * 100_000, b"# \xff"):
        path.write_bytes(content)
        assert main(["data", str(csv), "--write", str(path)]) == 1
        assert "old.toml is not" in capsys.readouterr().err
        assert path.read_bytes() == content
