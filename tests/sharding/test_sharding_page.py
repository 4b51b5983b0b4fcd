"""The examples of docs/sharding.md run, and its table is what is printed."""

import contextlib
import io
import re
from pathlib import Path

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "sharding.md").read_text(encoding="utf-8")


def test_the_page_runs_and_prints_its_table():
    ours = PAGE[: PAGE.index("## Constraints in the loss")]
    names, printed = {}, io.StringIO()
    with contextlib.redirect_stdout(printed):
        for block in re.findall(r"```python\n(.*?)```", ours, re.DOTALL):
            exec(block, names)
    (table,) = re.findall(r"```text\n(.*?)```", ours, re.DOTALL)
    assert table in printed.getvalue()
