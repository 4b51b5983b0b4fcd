"""The code blocks of docs/matrix_factorization.md run."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "matrix_factorization.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_block_runs(number):
    names = {}
    exec(BLOCKS[number], names)
    if "choice" in names:
        assert names["stddev"] == names["choice"].chosen.stddev
    else:
        assert names["squared_sensitivity"] == pytest.approx(4)
        assert names["added"]["w"].shape == (8, 4)


def test_there_are_blocks():
    assert len(BLOCKS) == 2
