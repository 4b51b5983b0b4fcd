"""The code blocks of docs/execution_plan.md run as printed."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "execution_plan.md"
CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)
BLOCKS = CODE.findall(PAGE.read_text())
PRINTED = re.findall(r"^    (\w.*)$", CODE.sub("", PAGE.read_text()), re.MULTILINE)


@pytest.mark.full
def test_the_blocks_run_one_after_the_other(capsys):
    names = {}
    for block in BLOCKS:
        exec(block, names)
    assert len(BLOCKS) == 3 and len(PRINTED) == 6
    table = capsys.readouterr().out
    for line in PRINTED:
        name, value = re.split(r" {2,}|(?<=_ONE) ", line, maxsplit=1)
        assert re.search(rf"{re.escape(name)} +│ {re.escape(value)}", table), line
