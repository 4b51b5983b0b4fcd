"""The code of docs/collectives.md runs as it is printed."""

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def blocks(page):
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def test_the_page_on_collectives_runs(capsys):
    names = {}
    for block in blocks("collectives.md"):
        exec(compile(block, "collectives.md", "exec"), names)
    assert names["report"].totals["all-reduce"].count > 0
    assert names["careless"].of("costly constraint")
    assert "costly" not in str(names["found"]) and "all-reduce" in capsys.readouterr().out


def test_the_page_on_scaling_compiles():
    (block,) = blocks("scale.md")
    compile(block, "scale.md", "exec")
