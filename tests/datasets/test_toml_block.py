"""What is written as TOML is read as the same values."""

import datetime
import tomllib

from bevel.datasets.toml_block import Bare, toml_block

VALUES = {
    "source": 'a "b"\\c\n.csv',
    "plain-key": True,
    "hours per week": [0.0, 100.0, "missing"],
    "größe": [-1.5e-7, 1e20],
    "joined": [Bare("2010-01-01"), Bare("2024-12-31")],
    "classes": [f"category number {k}" for k in range(40)],
    "count": 3,
}


def test_values_come_back():
    text = toml_block("data", VALUES, {"count": "why " * 40, "other": "at the end"})
    read = tomllib.loads(text)["data"]
    dates = [datetime.date(2010, 1, 1), datetime.date(2024, 12, 31)]
    assert read == VALUES | {"joined": dates}
    assert max(len(line) for line in text.splitlines()) <= 80
    assert text.rstrip().endswith("# at the end")
